"""One job from its submission to its last line."""
