"""HTML in which every text is escaped unless it was made here."""

from __future__ import annotations

from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


# Elements that have no end tag.
VOID = {"img", "meta", "br"}


def tag(name: str, /, *children: str, **attributes: str | int | None) -> Markup:
    """An element. Text among its children is escaped; an attribute that is None is left out.

    An underscore at the end of an attribute's name is dropped, others become hyphens: `class_`, `aria_label`.

    >>> tag("p", "1 < 2 ", tag("b", "yes"), class_="note")
    '<p class="note">1 &lt; 2 <b>yes</b></p>'
    """
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    opening = "".join([f"<{name}", *(f' {key}="{escape(str(value))}"' for key, value in pairs), ">"])
    return Markup(opening) if name in VOID else Markup(f"{opening}{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Several pieces, one after another.

    >>> join("a & b", tag("br"))
    'a &amp; b<br>'
    """
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))
