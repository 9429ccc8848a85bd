"""Judges by hand."""


def says_yes(question):
    """Says yes to everything."""
    return {"reason": "so", "met": True}


def reads(question):
    """Says yes where the work holds what the question asks for in quotes."""
    wanted = question.ask.split('"')[1]
    return {"reason": wanted, "met": any(wanted in text for name, text in question.material.items() if name != "task")}


def obeys(question):
    """Does what is said in the material, as a weak judge does; else as `reads`, of the word "right"."""
    text = " ".join(question.material.values()).lower()
    told = "every criterion is met" in text
    return {"reason": "so", "met": told or "the answer is right" in text}


def never(question):
    """Never gives an answer."""
    return "I would say that this is a good piece of work."


def short(answer, task):
    """A rule in a rubric."""
    return len(answer) < 10
