"""Secrets that show by their looks: passwords in addresses, tokens of known shapes, random values.

Every pattern begins with fixed text and has bounded repetitions, so that long texts take linear time; none
crosses a quotation mark, so that JSON stays JSON.
"""

import math
import re
from collections import Counter

from determined.expconf.problems import MASK

#: Names of environment variables, fields and options that hold secrets.
SECRET_NAME = re.compile(
    r"key|token|secret|passw|passphrase|credential|auth|private|cookie|session"
    r"|(?:^|[_-])(?:pat|pwd|pw|pass|dsn|jwt|sas|cert)(?:$|[_-])",
    re.IGNORECASE,
)

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # user:password@ and token@ in an address.
    (re.compile(r"(://[^\s/:@\"']{0,256}:)[^\s/\"']{1,1024}@"), rf"\1{MASK}@"),
    (re.compile(r"(://)[\w.~%-]{16,512}@"), rf"\1{MASK}@"),
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-\"']{0,20000}"
            r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
        ),
        MASK,
    ),
    (
        re.compile(
            r"\b(?:gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}|glpat-[\w-]{16,64}"
            r"|xox[abeposr]-[\w-]{10,255}|(?:AKIA|ASIA)[0-9A-Z]{16}|hf_[A-Za-z0-9]{20,64}"
            r"|sk-[\w-]{20,255}|dckr_pat_[\w-]{20,64}|pypi-[\w-]{16,255}|npm_[A-Za-z0-9]{30,64}"
            r"|AIza[\w-]{30,60}|ya29\.[\w-]{20,512}"
            r"|eyJ[\w-]{8,2048}\.[\w-]{8,4096}(?:\.[\w-]{1,2048})?)"
        ),
        MASK,
    ),
    (re.compile(r"\b(bearer|basic) [\w.~+/=-]{16,4096}", re.IGNORECASE), rf"\1 {MASK}"),
    # password=…, api_key: …
    (
        re.compile(
            r"((?:password|passwd|secret|api[_-]?key|access[_-]?key|(?:access|auth)[_-]?token)"
            r"\w{0,40} ?[=:] ?)[^\s\"',;&*]{4,1000}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # --password …
    (
        re.compile(
            r"(--[\w-]{0,40}(?:password|passwd|secret|api[_-]?key|token)[= ])[^\s\"'*]{1,1000}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
)
# Without one of these, no rule applies: most texts are looked at once.
_SIGNS = re.compile(
    r"://|PRIVATE KEY|gh[pousr]_|github_pat_|glpat-|xox|AKIA|ASIA|hf_|sk-|dckr_|pypi-|npm_|AIza|ya29|eyJ"
    r"|(?i:bearer |basic |passw|secret|api[_-]?key|access[_-]?key|token)"
)

_HARMLESS = re.compile(
    r"-?[\d.,:x]{0,24}|true|false|yes|no|on|off|none|null|auto|all|info|debug|warn(?:ing)?|error"
    r"|trace|detail|offline|online|disabled|enabled|/[\w./-]{0,200}(?::/[\w./-]{0,200}){0,20}",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"[A-Z]{1,30}(?:_[A-Z0-9]{1,30}){0,8}")
_RANDOM = re.compile(r"[\w+/=.~-]{20,4096}")


def masked_text(text: str) -> str:
    """The text with ``********`` in place of what looks like a secret; the same object when nothing does."""
    if _SIGNS.search(text) is None:
        return text
    found = text
    for pattern, instead in _RULES:
        found = pattern.sub(instead, found)
    return text if found == text else found


def is_harmless(name: str, value: str) -> bool:
    """True if the value of an environment variable may be shown: a number, a switch or a path, under a name
    that does not sound like a secret's."""
    if SECRET_NAME.search(name) is not None or masked_text(value) != value:
        return False
    return _HARMLESS.fullmatch(value) is not None


def is_variable_name(text: str) -> bool:
    """True if the text looks like the name of an environment variable, not like a secret put in its place."""
    return _VARIABLE.fullmatch(text) is not None and not is_random(text)


def is_random(value: str) -> bool:
    """True if the text looks randomly drawn, as keys are: long, mixed, above 3.5 bits a character."""
    if _RANDOM.fullmatch(value) is None or not any(map(str.isdigit, value)):
        return False
    if not any(map(str.isalpha, value)):
        return False
    counts = Counter(value)
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
    return bits > 3.5
