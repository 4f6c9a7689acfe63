import threading
from concurrent.futures import Future

from obsspec_gym.envs.mailbox import Mailbox


def test_in_order_of_arrival():
    mailbox, first, second = Mailbox(), Future(), Future()
    mailbox.expect(0, first)
    mailbox.expect(1, second)
    second.set_result("b")
    first.set_result("a")
    assert len(mailbox) == 2
    assert mailbox.take(2, None) == [(1, second), (0, first)]
    assert len(mailbox) == 0


def test_what_was_dropped_never_arrives():
    mailbox, futures = Mailbox(), [Future() for _ in range(3)]
    for sender, future in enumerate(futures):
        mailbox.expect(sender, future)
    futures[0].set_result("arrived")
    mailbox.drop([0, 1])
    futures[1].set_result("late")
    futures[2].set_result("kept")
    assert mailbox.take(0, None) == [(2, futures[2])]
    assert len(mailbox) == 0


def test_take_waits_for_as_many_as_asked():
    mailbox, futures = Mailbox(), [Future() for _ in range(3)]
    for sender, future in enumerate(futures):
        mailbox.expect(sender, future)
    futures[0].set_result(0)
    threading.Timer(0.05, futures[2].set_exception, [OSError()]).start()
    assert [sender for sender, _ in mailbox.take(2, 20)] == [0, 2]
    assert mailbox.take(1, 0.01) == []
