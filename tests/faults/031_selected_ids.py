"""An array that a list of ids names often, and what each of its tasks repeats, took long."""

from __future__ import annotations

from time import process_time

from routed import SCRIPT, Routed


def test_an_array_that_is_named_often_is_looked_up_once(server: Routed) -> None:
    assert server.ask("POST", "/jobs", SCRIPT | {"options": {"array": "0-2999"}})[0] == 200
    begun_s = process_time()
    status, answer = server.ask("POST", "/hold", {"id": "1," * 9_000 + "1_7"})
    assert process_time() - begun_s < 2.0
    assert status == 200 and len(answer["ids"]) == 2_998  # two run


def test_what_all_tasks_of_an_array_wait_for_is_bounded(server: Routed) -> None:
    assert server.submit() == "1"
    after = {"dependency": "afterany:" + ":".join(["1"] * 20)}
    many = {"dependency": ",".join(f"afterany:{n}" for n in range(1, 12)), "array": "0-9999"}
    for _ in range(10):
        server.submit()
    assert server.ask("POST", "/jobs", SCRIPT | {"options": after | {"array": "0-99"}})[0] == 200
    status, answer = server.ask("POST", "/jobs", SCRIPT | {"options": many})
    assert status == 400 and "for all tasks, got 110000" in answer["error"]


def test_a_power_limit_is_applied_once_to_an_array_of_many_sizes(server: Routed) -> None:
    begun_s = process_time()
    wide = {"nodes": [1, 100_000], "mode": "flexible", "array": "0-999", "power_limit_w": 3e5}
    assert server.ask("POST", "/jobs", SCRIPT | {"options": wide})[0] == 200
    assert process_time() - begun_s < 2.0
