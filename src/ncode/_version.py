"""The version of the library and of the lab; both builds read it here."""

__version__ = "0.1.0"
