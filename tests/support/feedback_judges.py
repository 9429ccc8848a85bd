"""Scripted judge that extracts rules about words and metrics from comments of the form `good WORD, bad WORD`."""

WORDS = ("because", "at")
"""Words about which the judge can name a rule."""


def answers(question):
    """Answer any question of the extraction of rules and metrics, deterministically."""
    fields, material = question.shape["properties"], question.material
    if "Merge" in question.ask:
        most = int(question.ask.split("at most ")[1].split()[0].rstrip(","))
        return {"rules": material["rules"].split("\n")[:most]}
    if "rules" in fields:
        words = [w for w in WORDS if (w in material["better"].split()) != (w in material["worse"].split())]
        return {"rules": [f"contains {word}" for word in words]}
    if "met" in fields:
        return {"reason": "", "met": question.ask.rpartition(" ")[2] in material["work"].split()}
    if "aspects" in fields:
        parts = [part.split() for part in material["comment"].split(", ")]
        return {"aspects": [{"behavior": b, "is_good": a == "good"} for a, b in (p for p in parts if len(p) == 2)]}
    if "metrics" in fields:
        names = dict.fromkeys(line.rpartition(" ")[2] for line in material["aspects"].split("\n"))
        return {"metrics": [{"name": name, "definition": f"whether the agent is {name}"} for name in names]}
    if "trait" in fields:
        is_shown = material["metric"].partition(":")[0] in material["work"].split()
        return {"reason": "", "trait": "good" if is_shown else "absent"}
    behavior = material["aspect"].rpartition(" ")[2]
    names = fields["metric"]["enum"]
    return {"reason": "", "metric": behavior if behavior in names else "none"}
