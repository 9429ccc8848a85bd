"""Ids of episodes belong to a key: another key cannot access them and can use the same ids."""

import pytest

from support.served_policy import HI, Scripted, build_assembly, played
from whetstone.serving import EpisodeRegistry, Key, Keys
from whetstone.serving.api_keys import hash_key

CHAT = "/v1/chat/completions"
ASKED = {"model": "tiny", "messages": HI, "max_tokens": 4}
STATES = ("open", "rewarded", "deleted", "empty", "unknown")


@pytest.fixture(scope="module")
def assembly():
    return build_assembly()


def keys_of(**roles):
    return Keys({hash_key(name): Key(name, hash_key(name), role) for name, role in roles.items()})


def requests_for(id):
    yield "GET", f"/v1/episodes/{id}", None
    yield "GET", f"/v1/episodes/{id}/conversation", None
    yield "POST", f"/v1/episodes/{id}/reward", {"reward": 1}
    yield "POST", f"/v1/episodes/{id}/reward", {"final": True}
    yield "POST", f"/episodes/{id}/v1/reward", {"reward": 1}
    yield "POST", f"/v1/episodes/{id}/rate", {"rating": 1}
    yield "POST", f"/v1/episodes/{id}/take-over", {"message": {"content": "x"}}
    yield "DELETE", f"/v1/episodes/{id}", None
    yield "POST", f"/v1/episodes/{id}/watch", {"seconds": 0}
    yield "POST", "/v1/episodes", {"id": id}
    yield "POST", f"/episodes/{id}{CHAT}", ASKED


def in_general(answer, id):
    """Return a response without fields that differ between equal requests."""
    headers = {name: value for name, value in answer.headers.items() if "request-id" not in name}
    text = answer.text.replace(id, "ID")
    if "choices" in text:
        text = "an answer"
    return answer.status_code, {name: value.replace(id, "ID") for name, value in headers.items()}, text


@pytest.mark.parametrize("number", range(len(list(requests_for("x")))))
def test_episode_of_another_key_is_as_a_missing_one(assembly, number):
    async def work(served):
        results = {}
        async with served.http() as http:

            async def ask(key, method, path, body):
                return await http.request(method, path, json=body, headers={"x-api-key": key})

            for state in STATES:
                id = f"{state:-<10}"
                if state == "empty":
                    await ask("owner", "POST", "/v1/episodes", {"id": id})
                elif state != "unknown":
                    assert (await ask("owner", "POST", f"/episodes/{id}{CHAT}", ASKED)).status_code == 200
                if state == "rewarded":
                    await ask("owner", "POST", f"/v1/episodes/{id}/reward", {"reward": 1})
                if state == "deleted":
                    await ask("owner", "DELETE", f"/v1/episodes/{id}", None)
                method, path, body = list(requests_for(id))[number]
                results[state] = in_general(await ask("other", method, path, body), id)
            own = {each.id.rstrip("-"): len(each.answers) for each in served.episodes if each.owner == "owner"}
        return results, own

    lines = ["a"] * 20
    results, own = played(
        assembly, work, keys=keys_of(owner="reward", other="reward"), engine=Scripted(assembly, *lines)
    )
    assert all(each == results["unknown"] for each in results.values()), results
    assert own == {"open": 1, "empty": 0}


def test_two_keys_can_use_one_id_and_are_recorded_separately(assembly):
    async def work(served):
        async with served.http() as http:
            for key in "ab":
                headers = {"x-api-key": key}
                assert (await http.post(f"/episodes/e{CHAT}", json=ASKED, headers=headers)).status_code == 200
            for key, reward in (("a", 0.25), ("b", 0.75)):
                headers = {"x-api-key": key}
                answer = await http.post("/v1/episodes/e/reward", json={"reward": reward}, headers=headers)
                assert (answer.status_code, answer.json()["id"]) == (200, "e")
                repeated = await http.post("/v1/episodes/e/reward", json={"reward": reward}, headers=headers)
                assert (repeated.status_code, repeated.json()["error"]["code"]) == (409, "episode_over")
        return [(each.id, each.task_id, each.score.value) for each in served.over]

    engine = Scripted(assembly, "x", "y")
    results = played(assembly, work, keys=keys_of(a="reward", b="reward"), engine=engine)
    assert results == [("a:e/a:e", "a:e", 0.25), ("b:e/b:e", "b:e", 0.75)]


def test_administrator_sees_episodes_of_any_key_with_own_ones_first():
    episodes, admin, user = EpisodeRegistry(), Key("root", "", "admin"), Key("agent", "")
    other = episodes.open_episode(user, {"id": "e"})
    assert episodes.get(admin, "e") is other
    own = episodes._open_new("e", admin, "")
    assert episodes.get(admin, "e") is own
    episodes.end(own)
    assert episodes.get(user, "e") is other


def test_names_in_records_are_distinct_for_any_keys_and_ids():
    pairs = [("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("a", "b")]
    episodes = EpisodeRegistry()
    names = [episodes.open_episode(Key(owner, "", "use"), {"id": id}).record_id for owner, id in pairs]
    assert len(set(names)) == len(names)
    assert episodes.open_episode(Key("", "", "use"), {"id": "e"}).record_id == "e"


def test_ended_episodes_of_a_key_are_kept_independently_of_others(monkeypatch):
    monkeypatch.setattr("whetstone.serving.episodes._MAX_ENDED", 2)
    episodes, careful, greedy = EpisodeRegistry(), Key("careful", ""), Key("greedy", "")
    episodes.end(episodes.open_episode(careful, {"id": "e"}))
    for number in range(9):
        episodes.end(episodes.open_episode(greedy, {"id": f"g{number}"}))
    with pytest.raises(Exception, match="has ended"):
        episodes.get(careful, "e")
    with pytest.raises(Exception, match="there is no episode"):
        episodes.get(greedy, "g0")
