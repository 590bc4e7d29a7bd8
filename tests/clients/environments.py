"""Environments through the official Python SDK: built from the public index, used, approved in place, cancelled;
and the specification's example of them.
"""

import asyncio
import json
import time

from harness import Checks, Forge, completed, read_json, refusal, text_of, wait_until
from mcp.types import ElicitResult

# Nothing else here is limited by how often one may build.
OFTEN = {"environment_builder": {"build_rate_limit": {"requests": 1000}}}

# In each era other packages, since an approval stands: the first needs the second.
HELD_BACK = {"legacy": ("jinja2", "markupsafe"), "auto": ("beautifulsoup4", "soupsieve")}

ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}


def held_back() -> dict:
    """Sections of a configuration that holds all of them back."""
    names = [name for pair in HELD_BACK.values() for name in pair]
    return OFTEN | {"packages": {"manual_approval": names}}


async def run_environments(checks: Checks, forge: Forge) -> None:
    async with forge.client("environments", {}, sections=OFTEN) as client:
        await checks.run("an environment is built, used, listed, described and deleted", check_life, client, seconds=180)
        await checks.run("a cancelled build leaves nothing", check_cancelled_build, forge, client, seconds=180)
        await checks.run("a build that is refused says why", check_refused, client)
    async with forge.client("example-2", forge.own_upstreams("filesystem"), sections=OFTEN) as client:
        await checks.run("example 2: building and using a custom environment", check_example_2, client, seconds=600)
    for mode, version in ERAS.items():

        def connect(answers: "Answers", mode=mode):
            name = f"approvals-{mode}"
            return forge.client(name, {}, mode=mode, sections=held_back(), elicitation_callback=answers)

        name = f"{version}: packages are approved in place, those of dependencies too"
        await checks.run(name, check_approval, connect, HELD_BACK[mode], seconds=180)


async def build(client, name: str, packages: list[str], told=None, **more) -> dict:
    arguments = {"name": name, "packages": packages, **more}
    result = await client.call_tool("build_custom_environment", arguments, progress_callback=told)
    assert not result.is_error, text_of(result)
    return result.structured_content


async def check_life(client) -> None:
    heard = []

    async def told(_progress, _total, message) -> None:
        heard.append(message or "")

    built = await build(client, "sixes", ["six>=1.16"], told, description="for a test")
    assert built["success"] is True and built["cache_hit"] is False, built
    assert built["image_name"] == "mcp-forge/custom:sixes" and len(built["lock_hash"]) == 64, built
    (installed,) = built["installed_packages"]
    assert installed.startswith("six=="), built
    # The first is sent at once, when it may not have begun; it may be over before a second is due.
    first, *others = heard
    assert "s: " in first or first == "0 s, no output yet", heard
    assert all("s: " in message for message in others), heard

    version = installed.removeprefix("six==")
    for name in ["sixes", "mcp-forge/custom:sixes"]:
        response = await completed(client, "import six; six.__version__", custom_image=name)
        assert response["result"] == version, response
    in_session = await completed(client, "import six; six.PY3", custom_image="sixes", session_id="with-six")
    assert in_session["result"] is True, in_session
    assert (await completed(client, "six.__name__", session_id="with-six"))["result"] == "six"

    again = await build(client, "sixes-too", ["six>=1.16"])
    assert again["cache_hit"] is True and again["lock_hash"] == built["lock_hash"], again

    listed = (await client.call_tool("list_custom_environments", {})).structured_content
    assert [one["name"] for one in listed["custom"]] == ["sixes", "sixes-too"], listed
    assert await read_json(client, "mcp://forge/environments/list") == listed
    (sixes, _) = listed["custom"]
    expected = {"name", "image", "description", "packages", "created_at", "size_mb", "last_used"}
    assert expected <= sixes.keys() and sixes["packages"] == [installed], sixes
    templates = {template["name"]: template for template in listed["templates"]}
    assert {"ml-basic", "ml-advanced", "data-science", "web-scraping"} <= templates.keys(), templates
    assert await read_json(client, "mcp://forge/environments/sixes/info") == sixes

    rebuilt = await client.call_tool("rebuild_custom_environment", {"name": "sixes-too"})
    assert rebuilt.structured_content["installed_packages"] == [installed], text_of(rebuilt)

    for name in ["sixes", "sixes-too"]:
        deleted = await client.call_tool("delete_custom_environment", {"name": name})
        assert deleted.structured_content == {"success": True, "name": name}, text_of(deleted)
    sentence = await refusal(client, "execute_python", {"code": "1", "custom_image": "sixes"})
    assert "no environment `sixes`" in sentence, sentence
    # What runs goes on.
    assert (await completed(client, "six.__name__", session_id="with-six"))["result"] == "six"


async def check_cancelled_build(forge: Forge, client) -> None:
    data = forge.directory / "data"
    running = asyncio.Event()

    def left() -> list:
        """Where builds write before they are done."""
        return [*data.glob("uv/staging-*"), *data.glob("environments/new-*")]

    async def told(_progress, _total, message) -> None:
        if any(phase in (message or "") for phase in ["resolving", "downloading", "installing"]):
            running.set()

    call = asyncio.create_task(build(client, "given-up", ["pandas", "matplotlib", "scikit-learn"], told))
    done, _ = await asyncio.wait([call, asyncio.create_task(running.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert call not in done, call
    await wait_until(left, 60, "something is being built")
    call.cancel()
    await asyncio.wait([call])
    await wait_until(lambda: not left(), 60, "the build's directories are gone")
    listed = (await client.call_tool("list_custom_environments", {})).structured_content
    assert "given-up" not in json.dumps(listed["custom"]), listed
    assert (await completed(client, "1 + 1"))["result"] == 2


async def check_refused(client) -> None:
    cases = [
        (["this-package-does-not-exist-anywhere-at-all"], ["this-package-does-not-exist-anywhere-at-all"]),
        (["six", "six @ https://example.org/six.whl"], ["packages[1]"]),
        (["--index-url=https://example.org"], ["packages[0]"]),
        (["six==99"], ["six==99"]),
        ([], ["packages"]),
    ]
    for packages, words in cases:
        sentence = await refusal(client, "build_custom_environment", {"name": "refused", "packages": packages})
        missing = [word for word in words if word not in sentence]
        assert not missing, f"{missing} not in: {sentence}"


async def check_example_2(client) -> None:
    environments = await read_json(client, "mcp://forge/environments/list")
    assert "my-ml-analysis" not in json.dumps(environments["custom"]), environments
    packages = [
        "numpy>=1.24.0",
        "pandas>=2.0.0",
        "scikit-learn>=1.3.0",
        "xgboost>=2.0.0",
        "matplotlib>=3.7.0",
        "seaborn>=0.12.0",
    ]
    heard = []

    async def told(_progress, _total, message) -> None:
        heard.append((time.monotonic(), message or ""))

    began = time.monotonic()
    description = "Custom ML environment for analysis project"
    built = await build(client, "my-ml-analysis", packages, told, description=description)
    assert built["image_name"] == "mcp-forge/custom:my-ml-analysis" and built["build_time"] > 0, built
    installed = {package.partition("==")[0] for package in built["installed_packages"]}
    assert {"numpy", "pandas", "scikit-learn", "xgboost", "matplotlib", "seaborn"} <= installed, built
    # Hundreds of megabytes: whoever waits hears of them.
    words = " ".join(message for _, message in heard)
    assert all(phase in words for phase in ["downloading", " MB", "installing"]), heard
    times = [began, *(moment for moment, _ in heard), time.monotonic()]
    assert max(later - earlier for earlier, later in zip(times, times[1:])) < 30, heard

    # As the example has it, but for the text of a file: pandas takes a text for the name of one.
    code = """
import io
import pandas as pd
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
import xgboost as xgb

# Load data (from volume or MCP tool)
data = io.StringIO(filesystem_read('/data/customer_churn.csv'))
df = pd.read_csv(data)

# Preprocess
X = df.drop('churn', axis=1)
y = df['churn']
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2)

# Train models
rf_model = RandomForestClassifier(n_estimators=100)
rf_model.fit(X_train, y_train)
rf_score = rf_model.score(X_test, y_test)

xgb_model = xgb.XGBClassifier()
xgb_model.fit(X_train, y_train)
xgb_score = xgb_model.score(X_test, y_test)

# Return results
{
  'random_forest_accuracy': rf_score,
  'xgboost_accuracy': xgb_score,
  'best_model': 'xgboost' if xgb_score > rf_score else 'random_forest'
}
"""
    response = await completed(
        client,
        code,
        custom_image="my-ml-analysis",
        mcp_tools=["filesystem_read"],
        session_id="churn-analysis",
    )
    result = response["result"]
    assert result["best_model"] in {"xgboost", "random_forest"}, result
    assert min(result["random_forest_accuracy"], result["xgboost_accuracy"]) > 0.7, result


class Answers:
    """A person at the client: hears each question, and gives the next of some answers."""

    def __init__(self, *actions: str) -> None:
        self.actions = list(actions)
        self.questions: list[str] = []

    async def __call__(self, _context, params) -> ElicitResult:
        self.questions.append(params.message)
        action = self.actions.pop(0)
        return ElicitResult(action=action, content={} if action == "accept" else None)


async def check_approval(connect, packages: tuple[str, str]) -> None:
    """`connect` makes a client of an asked person; of the packages the first needs the second."""
    first, second = packages
    arguments = {"name": "held-back", "packages": [first]}
    for action in ["decline", "cancel"]:
        answers = Answers(action)
        async with connect(answers) as client:
            sentence = await refusal(client, "build_custom_environment", arguments)
        assert "waits for an approval" in sentence and first in sentence, sentence
        (question,) = answers.questions
        assert first in question and second not in question and "everybody" in question, question
    answers = Answers("accept", "accept")
    async with connect(answers) as client:
        built = await build(client, "held-back", [first])
        asked = [question.splitlines()[1] for question in answers.questions]
        assert len(asked) == 2 and first in asked[0] and second in asked[1], answers.questions
        installed = {package.partition("==")[0] for package in built["installed_packages"]}
        assert {first, second} <= installed, built
        # It stands.
        again = await build(client, "held-back-too", [first])
        assert again["cache_hit"] is True and len(answers.questions) == 2, answers.questions
