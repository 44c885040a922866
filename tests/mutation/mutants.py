"""Mechanical mutants of C++ text: one comparison, one connective, one step or one statement is another or gone.

A mutant is (file, line from 1, what it is, the line as it becomes, the line as it was). Comments, strings and lines
that only write the log are left alone; so is what declares.
"""

import re

SWAPS = [  # (what stands there, what it becomes)
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "), (r" != ", " == "),
    (r" && ", " || "), (r" \|\| ", " && "), (r" \+ 1\b", ""), (r" - 1\b", ""), (r"\+\+(?=\w)", ""), (r"!(?=[\w(])", ""),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"std::max\b", "std::min"), (r"std::min\b", "std::max"),
]
# A line that is one whole statement: a call or an assignment, with or without its condition, or an early return.
STATEMENT = re.compile(r"^ +(?!return |const |auto |using |static |delete |else|for |while |case |default)"
                       r"[\w.>\[\](:*&!+-][^;]*[\])\w'\"]\s*;$|^ +\+\+[\w.>\[\]-]+;$")
DECLARATION = re.compile(r"^ +(std::|absl::|core::)?[\w:]+(<.*>)?[&*]? \w+( =.*|\{.*\}|\(.*\))?;$")
GUARDED = re.compile(r"^ +if \(.*\) [^{]*;$")
CASE = re.compile(r"^( +case .*: )(.*;) (return;|break;)$")


COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


def masked(text):
    """The text, with comments and strings blank; every character and line stays where it is."""
    return COMMENT_OR_STRING.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def mutants_of(file, text):
    lines, found = text.split("\n"), []
    blank = masked(text).split("\n")
    for number, (line, plain) in enumerate(zip(lines, blank), start=1):
        if plain.startswith(("#", "namespace", "using", "}")) or "spdlog" in plain or "CHECK" in plain:
            continue
        for old, new in SWAPS:
            for at in re.finditer(old, plain):
                if "template" in plain or "&&" in at.group() and re.search(r"\w&& \w+[,)]", plain):
                    continue
                found.append((file, number, f"{at.group().strip()} is {new.strip() or 'gone'}",
                              line[: at.start()] + new + line[at.end():], line))
        case = CASE.match(plain)
        if case:
            found.append((file, number, "effect of a case is gone",
                          line[: case.end(1)] + line[case.start(3):], line))
        elif GUARDED.match(plain) or (STATEMENT.match(plain) and not DECLARATION.match(plain)):
            if not whole(plain):
                continue
            found.append((file, number, "statement is gone", "" if not continues(blank, number) else "{}", line))
    return found


def whole(plain):
    """Whether the line's parentheses are its own."""
    return all(plain.count(a) == plain.count(b) for a, b in ("()", "[]", "{}"))


def continues(blank, number):
    """Whether the line before it ends a condition, so that a statement has to stand here."""
    before = blank[number - 2].rstrip()
    return bool(re.search(r"^\s*(\} )?(if|for|while|else)\b.*[^;{}]$", before))
