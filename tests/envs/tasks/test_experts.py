"""What experts decide from what they see, without a sandbox."""

from obsspec_gym.envs.tasks import Demonstrator, get_suite

OK = "[exit 0] ~"
LS = ("ls", f"alpha.sh\ncases\nrun_tests\n{OK}")
FAILED = ("./run_tests", "FAIL alpha\n[exit 1] ~")
SHOWN = ("cat alpha.sh", f"# x * 3 + 14\nx=$1\necho $((x * 3 + 41))\n{OK}")
REPAIRED = ("sed -i 's/41/14/' alpha.sh", OK)


def repairer() -> Demonstrator:
    return Demonstrator(get_suite("basics/tests").task(0))


def test_names_come_from_an_observation() -> None:
    assert repairer()([]) == "ls"
    assert repairer()([("cat alpha.sh", "cat: alpha.sh: No such file or directory\n[exit 1] ~")]) == "ls"


def test_the_steps_of_a_repair() -> None:
    expert = repairer()
    assert expert([LS]) == "./run_tests"
    assert expert([LS, FAILED]) == "cat alpha.sh"
    assert expert([LS, FAILED, SHOWN]) == REPAIRED[0]
    assert expert([LS, FAILED, SHOWN, REPAIRED]) == "./run_tests"
    assert expert([LS, FAILED, SHOWN, REPAIRED, ("./run_tests", f"1 passed\n{OK}")]) == "submit"


def test_after_a_wrong_edit_the_module_is_read_again() -> None:
    wrong = ("sed -i 's/41/99/' alpha.sh", OK)
    assert repairer()([LS, FAILED, SHOWN, wrong]) == "cat alpha.sh"
    shown = ("cat alpha.sh", f"# x * 3 + 14\nx=$1\necho $((x * 3 + 99))\n{OK}")
    assert repairer()([LS, FAILED, SHOWN, wrong, shown]) == "sed -i 's/99/14/' alpha.sh"


def test_a_result_from_before_an_edit_does_not_count() -> None:
    passed = ("./run_tests", f"1 passed\n{OK}")
    assert repairer()([LS, passed, ("echo >> alpha.sh", OK)]) == "./run_tests"


def test_the_builder_replaces_what_is_undefined_by_what_is_unused() -> None:
    expert = Demonstrator(get_suite("basics/build").task(1))
    ls = ("ls", f"alpha.fn\nbuild\n{OK}")
    error = ("./build", "alpha.fn:3: mint undefined\n[exit 1] ~")
    shown = ("cat alpha.fn", f"let rate = 4\nlet size = 30\nput x * mint + size\n{OK}")
    assert expert([ls, error]) == "cat alpha.fn"
    assert expert([ls, error, shown]) == "sed -i 's/mint/rate/' alpha.fn"
    slip = ("./build", "alpha.fn:1: lte unknown\n[exit 1] ~")
    assert expert([ls, slip]) == "sed -i 's/lte/let/' alpha.fn"


def test_the_config_expert_reads_the_checker() -> None:
    expert = Demonstrator(get_suite("basics/config").task(3))
    ls = ("ls", f"alpha.conf\ncheck\nrules\nserve\n{OK}")
    wrong = ("./check", "alpha.conf: port is 95, limit 60\n[exit 1] ~")
    assert expert([ls, wrong]) == "sed -i 's/port=95/port=60/' alpha.conf"
    missing = ("./check", "alpha.conf: no mode, default fast\n[exit 1] ~")
    assert expert([ls, missing]) == "echo mode=fast >> alpha.conf"
    assert expert([ls, ("./check", f"1 files valid\n{OK}")]) == "submit"
