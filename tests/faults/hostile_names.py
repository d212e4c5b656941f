"""Names that slides may have, of which some are made to leave a folder or to fool a program."""

PATHS = ("../../x", "..", ".", "a/b")
"""Names of predictions, which other systems write; bags cannot have them. Absolute ones are added
where a test runs."""
STRANGE = (
    *("a\\b", ".hidden", "~", "trailing.", "50%", "%2E%2E", "a:b*?|", "C:\\x", "lpt9"),
    *("con", "COM1.svs", "aux", "nul.txt", "Slide", "slide", "SLIDE"),
    *("=1+1", "+a", "-b", "@c", "'quoted", "<img src=x onerror=alert(1)>", "$HOME; rm -rf x"),
    *("é", "e\u0301", "новый слайд", "切片", "𝕏", "\u202egnp.x", "n" * 190),
)
"""Names that every system can keep apart, once they are spelt as names of files."""
REFUSED = ("", " ", "two\nlines", "a\x00b", "tab\tbed", "\ud800", "n" * 300)
"""Names that no slide can have: empty, control characters, no text, too long for a file."""
