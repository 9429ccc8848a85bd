"""Progress for tests."""

from whetstone.reporting import Progress


class Lines(Progress):
    """Progress that prints nothing and stores its lines."""

    def __init__(self):
        super().__init__(quiet=True)
        self.lines = []

    def say(self, text):
        self.lines.append(text)
