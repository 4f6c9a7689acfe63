"""Reading Dockerfiles: what is written comes out, lines are counted right, and what cannot be read is refused."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from obsspec_gym.envs.tasks.dockerfile import DockerfileError, Instruction, opened_heredocs, parse
from obsspec_gym.envs.tasks.image import shell_script
from obsspec_gym.envs.tasks.substitution import expand, split_words

PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\\<#`", exclude_categories=("C", "Z")), min_size=1)
WORDS = st.lists(PLAIN, min_size=1, max_size=5)
NOISE = st.sampled_from(["", "   ", "# a comment", "  # another, indented \\"])


@given(st.lists(st.tuples(st.sampled_from(["RUN", "LABEL", "workdir", "Expose"]), WORDS, st.lists(NOISE, max_size=2))))
def test_instructions_come_out_as_written_however_they_are_continued(
    instructions: list[tuple[str, list[str], list[str]]],
) -> None:
    lines: list[str] = ["FROM base"]
    expected = []
    for keyword, words, noise in instructions:
        words = [words[0].lstrip("-["), *words[1:]] if words[0].lstrip("-[") else ["x", *words[1:]]
        expected.append((len(lines) + 1, keyword.upper(), " ".join(words)))
        first, *rest = words
        lines.append(f"{keyword}  {first}" + (" \\" if rest else ""))
        for at, word in enumerate(rest):
            lines += noise
            lines.append(word + (" \\  " if at < len(rest) - 1 else ""))
        lines += noise
    found = [(each.line, each.keyword, each.text) for each in parse("\n".join(lines))[1:]]
    assert found == expected


@given(st.text(max_size=200))
@settings(max_examples=300)
def test_whatever_is_written_is_read_or_refused_with_a_line_that_exists(text: str) -> None:
    lines = []
    try:
        for instruction in parse(text):
            lines.append(instruction.line)
            split_words(instruction.text, instruction.line)
            expand(instruction.text, {"A": "a"}, instruction.line)
    except DockerfileError as error:
        lines.append(error.line)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines)


BODY = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0", exclude_categories=("Cs",))), max_size=6
)


@given(BODY, st.sampled_from(["EOF", "'EOF'", '"EOF"', " 'EOF'"]), st.booleans())
def test_a_heredoc_is_kept_line_by_line(body: list[str], opening: str, more: bool) -> None:
    body = [line for line in body if line != "EOF"]
    text = "\n".join(["FROM base", f"RUN cat <<{opening} > /file", *body, "EOF", *(["USER me"] if more else [])])
    instructions = parse(text)
    (heredoc,) = instructions[1].heredocs
    assert heredoc.content == "".join(f"{line}\n" for line in body)
    assert heredoc.expand == (opening == "EOF")
    assert [each.keyword for each in instructions] == ["FROM", "RUN", *(["USER"] if more else [])]
    assert not more or instructions[2].line == len(body) + 4


@given(BODY)
@settings(max_examples=25)
def test_a_shell_prints_a_quoted_heredoc_as_it_was_written(body: list[str]) -> None:
    body = [line for line in body if line.strip("\t") != "EOF"]
    run = parse("\n".join(["FROM base", "RUN cat <<'EOF' && echo after", *body, "EOF"]))[1]
    done = subprocess.run(["bash", "-c", shell_script(run)], capture_output=True, timeout=60, check=True)
    assert done.stdout.decode("utf-8") == "".join(f"{line}\n" for line in body) + "after\n"


def test_heredocs_of_all_kinds() -> None:
    text = "RUN <<-A cat - <<'B'; cat <<\\C\n\tone\n\tA\n two\nB\n$x\nC\nUSER me"
    run, user = parse(text)
    assert [(each.name, each.content, each.expand, each.strip) for each in run.heredocs] == [
        ("A", "one\n", True, True),
        ("B", " two\n", False, False),
        ("C", "$x\n", False, False),
    ]
    assert (user.line, user.keyword) == (8, "USER")
    assert shell_script(run) == "<<-A cat - <<'B'; cat <<\\C\none\nA\n two\nB\n$x\nC\n"


@pytest.mark.parametrize(
    "command",
    ["echo '<<EOF'", 'echo "<<EOF"', "echo \\<<EOF", "cat <<<word", "echo $((1<<2))", "echo 1 # <<EOF", "((x=1<<y))"],
)
def test_what_only_looks_like_a_heredoc_is_none(command: str) -> None:
    assert command == "echo \\<<EOF" or not list(opened_heredocs(command))
    if command != "echo \\<<EOF":
        assert parse(f"RUN {command}\nUSER me")[1].keyword == "USER"


def test_a_script_that_is_a_heredoc_is_run_as_such() -> None:
    assert shell_script(parse("RUN <<EOF\nset -e\necho a\nEOF")[0]) == "set -e\necho a\n"


def test_other_heredocs_than_those_of_run_copy_and_add_are_text() -> None:
    assert parse("CMD cat <<EOF\nUSER me")[1].keyword == "USER"


def test_flags_exec_form_escape_directive_and_line_ends() -> None:
    lines = [
        "# escape=`",
        "FROM --platform=linux/amd64 base`",
        "  AS x",
        "COPY --chown=me:me --link a b",
        'RUN ["a", "b c"]',
    ]
    text = "\r\n".join([*lines, ""])
    base, copy, run = parse(text)
    assert (base.line, base.flags, base.text) == (2, (("platform", "linux/amd64"),), "base  AS x")
    assert (copy.flags, copy.text) == ((("chown", "me:me"), ("link", "")), "a b")
    assert run.words == ("a", "b c")
    assert Instruction(1, "RUN", "[ -f x ]").words is None
    assert Instruction(1, "RUN", "[1]").words is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM a\n\n1 2", "line 3: expected an instruction, got '1 2'"),
        ("RUN cat <<EOF\na\n", "line 1: the heredoc EOF does not end"),
        ("# escape=x\nFROM a", "line 1: escape must be"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(DockerfileError, match=f"^{message}"):
        parse(text)


# Words for which the shell's rules and a Dockerfile's are the same (no blanks in values, no splitting).
PIECE = st.sampled_from(
    ["a", "b-", "$A", "${A}", "${A:-x}", "${B:-y}", "${B-z}", "${E-z}", "${E:-z}", "${A:+w}", "${B:+w}", "${E+w}",
     "'a$A'", '"q $A"', '"${B:-"n"}"', "\\$A", "\\\\", '"\\$A\\x"', "''", '"it\'s"', "${A:-${B:-deep}}"]
)  # fmt: skip


@given(st.lists(PIECE, max_size=6))
@settings(max_examples=60)
def test_variables_are_replaced_as_a_shell_replaces_them(pieces: list[str]) -> None:
    word, variables = "".join(pieces), {"A": "alpha", "E": ""}
    done = subprocess.run(
        ["bash", "-c", f"printf %s {word}"], env=variables, capture_output=True, text=True, timeout=60, check=True
    )
    assert expand(word, variables, 1) == done.stdout


@pytest.mark.parametrize("word", ["${A%x}", "${A", "${}", "${A:?no}", "${1}"])
def test_other_substitutions_are_refused(word: str) -> None:
    with pytest.raises(DockerfileError, match=r"^line 7: the substitution"):
        expand(word, {"A": "a"}, 7)


def test_words_are_split_outside_quotes() -> None:
    assert split_words("""a "b c"  d\\ e 'f  g'=h""", 1) == ["a", '"b c"', "d\\ e", "'f  g'=h"]
    with pytest.raises(DockerfileError, match="does not end"):
        split_words("a 'b", 1)
