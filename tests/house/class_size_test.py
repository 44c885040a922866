#!/usr/bin/python3
"""Counts what each class and struct of the product has, in C++ and in Python: lines, methods, fields, mutexes. Beyond the
limits it may only shrink.

    class_size_test.py                  compares classes beyond a limit with those in tests/golden/class_sizes.txt
    class_size_test.py --record         writes down what has shrunk, and forgets classes that are within the limits

A class that outgrows the limits is cut by collaborator: find the noun that owns some of its fields, and move them with
their methods. Cutting its file into pages changes nothing here, because lines are counted wherever they stand: those
of the class between its braces and those of its definitions in any file, comments included.
"""

import ast
import collections
import re
import sys
import unittest

from includes_test import ROOT, tracked_files

sys.path.insert(0, str(ROOT / "tests" / "mutation"))
from mutants import masked  # noqa: E402

RECORD = ROOT / "tests" / "golden" / "class_sizes.txt"
Size = collections.namedtuple("Size", ("lines", "methods", "fields", "mutexes"))
LIMITS = Size(400, 25, 15, 1)
LARGEST = 10
NOT_COUNTED = ("tests/", "examples/", "build/")

CLASS = re.compile(r"^(?:template\s*<[^\n]*>\s*)?(?:class|struct) (?:\[\[\w+\]\] )?(\w+)(?: final)?[^;{()]*\{", re.MULTILINE)
# Where the definition of a member begins: at the left edge, with its class's name before its own.
DEFINITION = re.compile(r"^(?!\s|#|//|\}|namespace|using)[^;{}=()]*?\b(\w+)::~?\w+(?:\(|<|[^\w\s:(]+\()", re.MULTILINE)
FIELD = re.compile(r"[\w>\])*&]\s*[\s*&]\w+(?:\[[^\]]*\])*(?:, \w+)*$")  # without what it is initialised with
METHOD = re.compile(r"(~?\w+|operator\W+)\s*\(")
MUTEX = re.compile(r"\b(?:core::)?Mutex\s+\w+")
PYTHON_LOCKS = {"Lock", "RLock", "Condition"}
NO_METHODS = {"ABSL_GUARDED_BY", "ABSL_PT_GUARDED_BY", "ABSL_EXCLUSIVE_LOCKS_REQUIRED", "ABSL_LOCKS_EXCLUDED",
              "ABSL_ACQUIRED_BEFORE", "function", "decltype", "noexcept", "sizeof", "static_assert"}


def end_of_block(code, at):
    """Behind the brace that closes the one at `at`."""
    depth = 0
    for brace in re.finditer(r"[{}]", code[at:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return at + brace.end()
    return len(code)


def members_of(body):
    """(methods, fields, mutexes) of what stands between a class's braces."""
    flat, at = [], 0
    while at < len(body):  # without what is nested: bodies, initialisers, types of its own
        if body[at] == "{":
            end = end_of_block(body, at)
            flat.append("{}" if "\n" not in body[at:end] and body[end:end + 1] == ";" else "{};")
            at = end
        else:
            flat.append(body[at])
            at += 1
    methods = fields = mutexes = 0
    for part in re.split(r";|\b(?:public|private|protected)\s*:", "".join(flat)):
        statement = " ".join(part.split())
        if not statement or re.match(r"(using|friend|struct|class|enum|typedef|static constexpr)\b", statement):
            continue
        plain = without_templates(re.sub(r"ABSL_\w+\s*\([^()]*\)|alignas\s*\([^()]*\)", "", statement))
        plain = re.sub(r"\s*(?:=[^=]|\{).*$", "", plain, flags=re.DOTALL) if "operator" not in plain else plain
        if "(" not in plain and FIELD.search(plain.strip()):
            fields += 1 + len(re.findall(r", \w+", plain))
            mutexes += bool(MUTEX.search(statement))
        elif any(name not in NO_METHODS for name in METHOD.findall(statement)):
            methods += 1
    return methods, fields, mutexes


def without_templates(text):
    """`std::function<void(int)> call_` becomes `std::function call_`."""
    while (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    return text


def python_sizes_in(sources):
    """The same of Python's classes: fields are those of `self` and the annotated ones."""
    sizes = {}
    for name, source in sources.items():
        for found in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
            own = [node for node in ast.walk(found) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                   and isinstance(node.value, ast.Name) and node.value.id == "self"]
            fields = {node.attr for node in own} | {node.target.id for node in found.body if isinstance(node, ast.AnnAssign)
                                                    and isinstance(node.target, ast.Name)}
            locks = [node for node in ast.walk(found) if isinstance(node, ast.Call)
                     and getattr(node.func, "attr", getattr(node.func, "id", "")) in PYTHON_LOCKS]
            methods = [node for node in found.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
            sizes[f"{name.rpartition('/')[0]}/{found.name}"] = Size(found.end_lineno - found.lineno + 1, len(methods), len(fields),
                                                                    len(locks))
    return sizes


def lines_above(source, at):
    """How many lines of comment stand right above the line that `at` is in."""
    above = source[:at].rstrip(" ").split("\n")[:-1]
    count = 0
    while count < len(above) and above[-1 - count].startswith("//"):
        count += 1
    return count


def sizes_in(sources):
    """{"folder/Class": Size} of sources {name: text}. A class is looked for by its folder and its name."""
    lines, members = collections.Counter(), {}
    codes = {name: masked(source) for name, source in sources.items()}
    for name, code in codes.items():
        for match in CLASS.finditer(code):
            key = f"{name.rpartition('/')[0]}/{match.group(1)}"
            end = end_of_block(code, match.end() - 1)
            lines[key] += code.count("\n", match.start(), end) + 1 + lines_above(sources[name], match.start())
            members[key] = members_of(code[match.end():end - 1])
    for name, code in codes.items():
        for match in DEFINITION.finditer(code):
            key = f"{name.rpartition('/')[0]}/{match.group(1)}"
            opens = code.find("{", match.end())
            ends = code.find(";", match.end())
            if key not in members or opens < 0:
                continue
            end = end_of_block(code, opens) if ends < 0 or opens < ends else ends + 1
            lines[key] += code.count("\n", match.start(), end) + 1 + lines_above(sources[name], match.start())
    return {key: Size(lines[key], *members[key]) for key in members}


def sizes_in_tree():
    names = [name for name in tracked_files() if not name.startswith(NOT_COUNTED) and (ROOT / name).is_file()]
    texts = {name: (ROOT / name).read_text() for name in names if name.endswith((".h", ".cc"))}
    python = {name: (ROOT / name).read_text() for name in names if name.startswith("python/") and name.endswith(".py")}
    return sizes_in(texts) | python_sizes_in(python)


def beyond_limits(sizes):
    return {key: size for key, size in sizes.items() if any(got > limit for got, limit in zip(size, LIMITS))}


def recorded():
    rows = (line.split() for line in RECORD.read_text().splitlines() if not line.startswith("#"))
    return {key: Size(*map(int, figures)) for key, *figures in rows}


def faults_of(sizes, record):
    faults = []
    for key, size in beyond_limits(sizes).items():
        for figure, got, limit in zip(Size._fields, size, LIMITS):
            allowed = max(limit, getattr(record[key], figure) if key in record else 0)
            if got > allowed:
                faults.append(f"{key}: {got} {figure}, at most {allowed}; move some of its fields, with their methods, "
                              "to a class of their own")
    return faults


def table_of(sizes):
    largest = sorted(sizes.items(), key=lambda item: item[1], reverse=True)[:LARGEST]
    rows = [("class", *Size._fields), *((key, *map(str, size)) for key, size in largest)]
    return "\n".join(f"{row[0]:44}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows)


class PlantedClasses(unittest.TestCase):
    HEADER = """
// Two lines
// above it.
class Hall final : public Room {
 public:
  Hall(int a) : a_(a) {}
  ~Hall();
  static absl::StatusOr<std::unique_ptr<Hall>> Make(std::function<void(int)> done);
  int a() const { return a_; }  // not_a_field_;
  friend bool operator==(const Hall&, const Hall&) = default;

 private:
  struct Own {
    int inner_ = 0;
    void Method();
  };
  void Locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  mutable core::Mutex mutex_;
  int a_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<int(const std::string&)> call_;
  std::map<int, std::string> names_{{1, "{"}};
};
class Later;
"""
    SOURCE = """
// Why.
int Hall::a() const {
  if (true) {
    return 1;
  }
}

Hall::~Hall() = default;
int Other::a() const {
}
"""

    def test_lines_count_wherever_they_stand_and_members_once(self):
        sizes = sizes_in({"x/hall.h": self.HEADER, "x/hall.cc": self.SOURCE, "y/hall.cc": self.SOURCE})
        self.assertEqual({"x/Hall": Size(21 + 6 + 1, 5, 4, 1)}, sizes)

    def test_a_structs_public_fields_and_those_of_pythons_classes_count(self):
        struct = ("struct Run {\n  core::Clock& clock;\n  std::function<void(int)> done = nullptr;\n  int a, b;\n"
                  "  core::Mutex mutex;\n  std::vector<std::pair<int, int>> pairs{{1, 2}};\n  bool Open(int a = 0) const;\n};\n")
        self.assertEqual({"x/Run": Size(8, 1, 6, 1)}, sizes_in({"x/run.h": struct}))
        python = ("class Site:\n    name: str\n    def __init__(self):\n        self.a = self.b = 1\n"
                  "        self.lock = threading.Lock()\n    def a_method(self):\n        self.a = 2\n")
        self.assertEqual({"y/Site": Size(7, 2, 4, 1)}, python_sizes_in({"y/site.py": python}))

    def test_what_is_beyond_a_limit_may_shrink_and_not_grow(self):
        record = {"x/Hall": Size(500, 30, 3, 1)}
        self.assertEqual([], faults_of({"x/Hall": Size(450, 30, 15, 1), "x/Room": LIMITS}, record))
        (fault,) = faults_of({"x/Hall": Size(500, 31, 3, 1)}, record)
        self.assertIn("x/Hall: 31 methods, at most 30", fault)
        (fault,) = faults_of({"x/Room": Size(1, 1, 1, 2)}, record)
        self.assertIn("x/Room: 2 mutexes, at most 1", fault)


class ThisTree(unittest.TestCase):
    def test_no_class_has_outgrown_its_limits(self):
        sizes, record = sizes_in_tree(), recorded()
        print(table_of(sizes))
        self.assertEqual("", "\n".join(faults_of(sizes, record)))
        if any(sizes.get(key) != size for key, size in record.items()):
            print("class_size_test: classes have shrunk; lower the record with: tests/house/class_size_test.py --record")


def main(arguments):
    if arguments != ["--record"]:
        return unittest.main()
    record = recorded()
    beyond = sorted(beyond_limits(sizes_in_tree()).items())
    shrunk = {key: Size(*map(min, size, record.get(key, size))) for key, size in beyond}
    head = "# Classes beyond a limit: lines, methods, fields, mutexes, which may only fall. See tests/house/class_size_test.py.\n"
    RECORD.write_text(head + "".join(f"{key} {' '.join(map(str, size))}\n" for key, size in shrunk.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
