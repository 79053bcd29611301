"""What a user can get wrong: one sentence, with what was expected and what was got."""


class InputError(ValueError):
    """Input that cannot be run."""
