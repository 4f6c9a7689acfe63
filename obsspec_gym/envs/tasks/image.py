"""Dockerfiles, interpreted: one bash script that makes over our base image what they describe."""

from __future__ import annotations

import fnmatch
import io
import posixpath
import re
import shlex
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from obsspec_gym.envs.sandbox.files import EPOCH
from obsspec_gym.envs.sandbox.layers import ENVIRONMENT
from obsspec_gym.envs.tasks.build_script import CONTEXT, PRELUDE
from obsspec_gym.envs.tasks.dockerfile import DockerfileError, Heredoc, Instruction, parse
from obsspec_gym.envs.tasks.substitution import expand, split_words
from obsspec_gym.envs.tasks.task import Image

PATH = ENVIRONMENT["PATH"]
"""Where programs are looked for unless ``ENV PATH`` says otherwise."""

_IGNORED = frozenset({"CMD", "ENTRYPOINT", "LABEL", "EXPOSE", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER"})
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]*://|git@")


def read_image(dockerfile: str, context: Path, *, timeout: float = 600.0) -> Image:
    """What a Dockerfile describes, over our base image in place of its own.

    ``RUN`` (shell and exec form, heredocs), ``COPY`` and ``ADD`` of local files and heredocs, ``ENV``, ``ARG``,
    ``WORKDIR``, ``USER`` and ``SHELL`` are carried out; ``CMD``, ``ENTRYPOINT``, ``LABEL``, ``EXPOSE``, ``VOLUME``,
    ``STOPSIGNAL``, ``HEALTHCHECK`` and ``MAINTAINER`` are ignored: nothing they would start is running. What apt and
    pip are told to install must be in the base image already: if it is, they have nothing to do; if not, the build
    is refused with its name. There is no network.

    Args:
        dockerfile: Its text.
        context: The directory that ``COPY`` and ``ADD`` copy from.
        timeout: Seconds the build may take.

    Raises:
        DockerfileError: If it cannot be read, or asks for anything else.
    """
    interpreter = _Interpreter(context)
    for instruction in parse(dockerfile):
        interpreter.carry_out(instruction)
    return interpreter.image(timeout)


@dataclass(slots=True)
class _Interpreter:
    context: Path
    steps: list[str] = field(default_factory=list)
    sources: dict[str, Path] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "root"
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    based: bool = False

    def carry_out(self, instruction: Instruction) -> None:
        keyword, line = instruction.keyword, instruction.line
        handlers: Mapping[str, Callable[[Instruction], None]] = {
            "FROM": self._from,
            "RUN": self._run,
            "COPY": self._copy,
            "ADD": self._copy,
            "ENV": self._env,
            "ARG": self._arg,
            "WORKDIR": self._workdir,
            "USER": self._user,
            "SHELL": self._shell,
        }
        if not self.based and keyword not in ("FROM", "ARG"):
            raise DockerfileError(line, f"expected FROM before {keyword}")
        if keyword in handlers:
            handlers[keyword](instruction)
        elif keyword not in _IGNORED:
            raise DockerfileError(line, f"the instruction {keyword} is not supported")

    def image(self, timeout: float) -> Image:
        if not self.based:
            raise DockerfileError(1, "there is no FROM")
        files: dict[str, str | bytes] = {}
        if self.sources or self.documents:
            files[CONTEXT] = _pack(self.sources, self.documents)
        build = PRELUDE + "\n".join(self.steps) + "\nfinish\n"
        return Image(build, files, self.user, self.workdir, dict(self.env), timeout)

    def _from(self, instruction: Instruction) -> None:
        if self.based:
            raise DockerfileError(instruction.line, "a second FROM (multi-stage builds are not supported)")
        if not instruction.text:
            raise DockerfileError(instruction.line, "FROM needs an image")
        self.based = True
        self.arguments.clear()  # those before FROM are for FROM only

    def _run(self, instruction: Instruction) -> None:
        line = instruction.line
        for name, value in instruction.flags:
            harmless = (name, value) in (("network", "default"), ("network", "none"))
            if not harmless and not (name == "mount" and "type=cache" in value.split(",")):
                raise DockerfileError(line, f"RUN --{name}={value} is not supported")
        if not instruction.text:
            raise DockerfileError(line, "RUN needs a command")
        words = instruction.words
        command = words if words is not None else (*self.shell, shell_script(instruction))
        if not command:
            raise DockerfileError(line, "RUN needs a command")
        environment = self.arguments | self.env
        environment["PATH"] = environment.get("PATH", PATH)
        variables = [f"{name}={value}" for name, value in environment.items()]
        self._step("run", line, self.user, self.workdir, *variables, "--", *command)

    def _copy(self, instruction: Instruction) -> None:
        keyword, line, flags = instruction.keyword, instruction.line, dict(instruction.flags)
        if unknown := sorted(flags.keys() - {"chown", "chmod", "link"}):
            raise DockerfileError(line, f"{keyword} --{unknown[0]} is not supported")
        words = [self._expand(word, line, quotes=False) for word in instruction.words or ()]
        words = words or [self._expand(word, line) for word in split_words(instruction.text, line)]
        if len(words) < 2:
            raise DockerfileError(line, f"{keyword} needs a source and a destination")
        *sources, destination = words
        heredocs = iter(instruction.heredocs)
        copied: list[str] = []
        for source in sources:
            if source.startswith("<<"):
                copied.append(self._document(next(heredocs), line))
            elif keyword == "ADD" and _REMOTE.match(source):
                raise DockerfileError(line, f"ADD of {source} needs the network")
            else:
                copied += self._local(source, line)
        into = posixpath.join(self.workdir, destination)
        if len(copied) > 1 and not into.endswith("/"):
            raise DockerfileError(line, f"{keyword} of several files needs a destination that ends with /")
        owner, mode = (self._expand(flags.get(name, ""), line) for name in ("chown", "chmod"))
        for source in copied:
            unpacks = keyword == "ADD" and source in self.sources and _is_archive(self.sources[source])
            self._step("unpack" if unpacks else "copy", line, owner, mode, into, source)

    def _document(self, heredoc: Heredoc, line: int) -> str:
        """Files a heredoc; returns where."""
        name = f"heredocs/{len(self.documents)}/{heredoc.name}"
        content = heredoc.content
        self.documents[name] = self._expand(content, line, quotes=False) if heredoc.expand else content
        return name

    def _local(self, pattern: str, line: int) -> list[str]:
        """The files and directories of the context that a source names."""
        if (self.context / ".dockerignore").exists():
            raise DockerfileError(line, "a .dockerignore is not supported")
        path = posixpath.normpath("/" + pattern).lstrip("/") or "."
        found = _match(self.context, path)
        if not found:
            raise DockerfileError(line, f"{pattern} is not in the build context")
        names = []
        for each in found:
            name = posixpath.join("context", each.relative_to(self.context).as_posix())
            self.sources[name] = each
            names.append(name)
        return names

    def _env(self, instruction: Instruction) -> None:
        self.env |= self._assignments(instruction)

    def _assignments(self, instruction: Instruction) -> dict[str, str]:
        line = instruction.line
        words = split_words(instruction.text, line)
        if not words:
            raise DockerfileError(line, f"{instruction.keyword} needs a name and a value")
        if "=" not in words[0]:  # the old form: a name, and the rest of the line
            name, *rest = instruction.text.split(maxsplit=1)
            if not rest:
                raise DockerfileError(line, f"ENV {name} has no value")
            return {_variable(name, line): self._expand(rest[0], line)}
        assigned = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise DockerfileError(line, f"expected NAME=VALUE, got {word!r}")
            assigned[_variable(name, line)] = self._expand(value, line)
        return assigned

    def _arg(self, instruction: Instruction) -> None:
        for word in split_words(instruction.text, instruction.line):
            name, equals, value = word.partition("=")
            if equals:  # nobody passes --build-arg: one without a default stays unset
                self.arguments[_variable(name, instruction.line)] = self._expand(value, instruction.line)

    def _workdir(self, instruction: Instruction) -> None:
        if not instruction.text:
            raise DockerfileError(instruction.line, "WORKDIR needs a path")
        path = self._expand(instruction.text, instruction.line)
        self.workdir = posixpath.normpath(posixpath.join(self.workdir, path))
        self._step("directory", instruction.line, self.workdir)

    def _user(self, instruction: Instruction) -> None:
        user = self._expand(instruction.text, instruction.line)
        if not re.fullmatch(r"[\w.-]+(:[\w.-]+)?", user):
            raise DockerfileError(instruction.line, f"expected USER NAME[:GROUP], got {user!r}")
        self.user = user

    def _shell(self, instruction: Instruction) -> None:
        if not instruction.words:
            raise DockerfileError(instruction.line, "SHELL needs a JSON array of words")
        self.shell = instruction.words

    def _expand(self, text: str, line: int, *, quotes: bool = True) -> str:
        return expand(text, {"PATH": PATH} | self.arguments | self.env, line, quotes=quotes)

    def _step(self, function: str, line: int, *words: str) -> None:
        if any("\0" in word for word in words):
            raise DockerfileError(line, "NUL is not supported")
        self.steps.append(shlex.join([function, str(line), *words]))


def shell_script(instruction: Instruction) -> str:
    """What the shell is given for a ``RUN`` in shell form: the command with its heredocs, or the heredoc alone."""
    heredocs = instruction.heredocs
    if len(heredocs) == 1 and re.fullmatch(r"<<-?\s*(\S+|'[^']*'|\"[^\"]*\")", instruction.text):
        return heredocs[0].content
    # The tabs that <<- ignores are gone already; opened again by <<-, the document stays as it is.
    bodies = "".join(f"\n{heredoc.content}{heredoc.name}" for heredoc in heredocs)
    return instruction.text + bodies + ("\n" if bodies else "")


def _variable(name: str, line: int) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise DockerfileError(line, f"expected the name of a variable, got {name!r}")
    return name


def _match(context: Path, pattern: str) -> list[Path]:
    """The paths of a context that a pattern names, component by component; links do not lead out of it."""
    found = [context]
    for part in [part for part in pattern.split("/") if part != "."]:
        if re.search(r"[*?\[]", part):
            below: Iterable[Path] = (child for parent in found if parent.is_dir() for child in sorted(parent.iterdir()))
            found = [child for child in below if fnmatch.fnmatchcase(child.name, part)]
        else:
            found = [parent / part for parent in found if (parent / part).exists()]
    inside = context.resolve()
    return [path for path in found if path.resolve().is_relative_to(inside)]


def _is_archive(path: Path) -> bool:
    return path.is_file() and tarfile.is_tarfile(path)


def _pack(sources: Mapping[str, Path], documents: Mapping[str, str]) -> bytes:
    """A tar of files with their modes, owned by root, with a fixed time: the same files, the same bytes."""

    def normal(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = EPOCH
        return entry

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, path in sorted(sources.items()):
            tar.add(path, name, filter=normal)
        for name, text in documents.items():
            entry, data = normal(tarfile.TarInfo(name)), text.encode("utf-8", "surrogateescape")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return archive.getvalue()
