"""tokenmix: models that mix tokens by other means than plain attention."""

__version__ = "0.1.0"
