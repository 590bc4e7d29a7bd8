"""The specification's examples of sessions, through the official Python SDK.

Where an example leaves out an import, a directory or a function that it calls, a turn before it
makes it; what the example says is run as it stands.
"""

import json
import sys

from harness import Checks, Forge, completed, execute, read_json, read_until, text_of


async def run_sessions(checks: Checks, forge: Forge) -> None:
    async with forge.client("sessions", forge.own_upstreams("filesystem"), python=sys.executable) as client:
        await checks.run("the agent's workflow", check_workflow, client)
        await checks.run("example 3: stateful analysis", check_example_3, client)
        await checks.run("example 5: multi-step stateful analysis", check_example_5, client)
        await checks.run("a timeout keeps the session", check_timeout, client)
        await checks.run("sessions are listed and deleted", check_list, client)
    await checks.run("a new server tells of the loss once, and keeps the rest", check_restart, forge)


async def document(client, **arguments) -> dict:
    result = await client.call_tool("document_state", arguments)
    assert not result.is_error, text_of(result)
    return result.structured_content


async def state_with(client, session: str, *variables: str) -> dict:
    """What is told of a session once these are among its variables."""
    uri = f"mcp://forge/sessions/{session}/state"
    return await read_until(client, uri, lambda state: set(variables) <= set(state["all_variables"]))


async def check_workflow(client) -> None:
    session = "analysis-123"
    await completed(
        client,
        """
import pandas as pd
def load_large_dataset(): return pd.DataFrame({"a": range(100_000), "b": None}).assign(b=lambda t: t["a"] % 20)
def preprocess(df): return df[df["b"] > 0]
def train_model(df): return float(df["a"].mean())
def evaluate(model): return {"score": model}
""",
        session_id=session,
    )
    await completed(
        client, "df = load_large_dataset(); df_clean = preprocess(df)", session_id=session, backend="jupyter"
    )
    answer = await document(
        client,
        session_id=session,
        variables={
            "df": "Raw dataset, 100k rows",
            "df_clean": "Cleaned dataset, 95k rows, ready for modeling",
        },
        note="Data loading complete",
    )
    assert answer == {"success": True, "documented_count": 2, "session_id": session}, answer
    state = await state_with(client, session, "df", "df_clean")
    assert state["documented_variables"]["df_clean"].startswith("Cleaned dataset"), state
    assert state["note"] == "Data loading complete", state
    frame = state["introspection"]["df_clean"]
    assert (frame["type"], frame["shape"]) == ("DataFrame", [95_000, 2]) and frame["memory_mb"] > 0, frame
    response = await completed(
        client, "model = train_model(df_clean); results = evaluate(model)", session_id=session
    )
    assert response["session_id"] == session and response["session"]["generation"] == 1, response["session"]
    expected = {"df", "df_clean", "model", "results"}
    await read_until(client, f"mcp://forge/sessions/{session}/variables", lambda names: expected <= set(names))


async def check_example_3(client) -> None:
    session = "deep-analysis"
    # Tools return rows, not frames.
    first = """
import pandas as pd
import matplotlib.pyplot as plt

df = pd.DataFrame(filesystem_read_csv('/data/sales_2024.csv'))
print(f"Loaded {len(df)} rows")
print(df.describe())

# Store for later
df.to_pickle('/tmp/sales_df.pkl')
"""
    response = await completed(
        client, first, mcp_tools=["filesystem_read_csv"], session_id=session, backend="jupyter"
    )
    assert response["stdout"].startswith("Loaded 120 rows\n"), response["stdout"]
    await document(
        client,
        session_id=session,
        variables={"df": "Sales data for 2024, loaded and stored as pickle"},
        note="Data loaded and ready for analysis",
    )
    state = await state_with(client, session, "df")
    assert state["introspection"]["df"]["shape"] == [120, 3], state["introspection"]
    second = """
import pandas as pd
df = pd.read_pickle('/tmp/sales_df.pkl')

# Analyze trends
monthly_sales = df.groupby('month')['revenue'].sum()
growth_rate = monthly_sales.pct_change().mean() * 100

{
  'total_revenue': float(df['revenue'].sum()),
  'avg_monthly_growth': float(growth_rate),
  'top_products': df.groupby('product')['revenue'].sum().nlargest(5).to_dict()
}
"""
    response = await completed(client, second, session_id=session)
    assert response["result"]["total_revenue"] > 0 and len(response["result"]["top_products"]) == 5, response["result"]


async def check_example_5(client) -> None:
    session = "analysis-001"
    await completed(
        client,
        "import io, os\nimport matplotlib.pyplot as plt\nos.makedirs('/workspace/output')",
        session_id=session,
    )
    first = """
data = filesystem_read('/data/sales.csv')
import pandas as pd
df = pd.read_csv(io.StringIO(data))
print(f"Loaded {len(df)} rows")
"""
    response = await completed(
        client, first, session_id=session, backend="jupyter", mcp_tools=["filesystem_read"]
    )
    assert response["stdout"] == "Loaded 500 rows\n", response["stdout"]
    await document(
        client,
        session_id=session,
        variables={"df": "Sales data, 50k rows, columns: date, product, amount, region"},
        note="Data loaded, ready for analysis",
    )
    await completed(client, "df['date'] = pd.to_datetime(df['date']); None", session_id=session)
    third = """
# df still exists from previous execution
monthly_sales = df.groupby(df['date'].dt.month)['amount'].sum()
monthly_sales.plot()
plt.savefig('/workspace/output/monthly.png')
monthly_sales.to_dict()  # Return summary
"""
    result = await client.call_tool("execute_python", {"code": third, "session_id": session})
    response = result.structured_content
    assert response["success"] is True and len(response["result"]) == 12, response
    uri = f"mcp://forge/sessions/{session}/files/output/monthly.png"
    links = [str(block.uri) for block in result.content if block.type == "resource_link"]
    assert links == [uri], links
    picture = (await client.read_resource(uri)).contents[0]
    assert picture.mime_type == "image/png" and picture.blob.startswith("iVBORw0KGgo"), picture.mime_type
    state = await state_with(client, session, "df", "monthly_sales")
    assert state["changes"]["added"] == ["monthly_sales"], state["changes"]


async def check_timeout(client) -> None:
    await completed(client, "kept = 41", session_id="patient")
    response = await execute(client, "import time; time.sleep(600)", session_id="patient", timeout=1)
    assert response["outcome"] == "timed_out" and response["session"]["lost_reason"] is None, response
    assert (await completed(client, "kept + 1", session_id="patient"))["result"] == 42


async def check_list(client) -> None:
    listed = (await client.call_tool("list_sessions", {})).structured_content["sessions"]
    names = {session["session_id"] for session in listed}
    assert {"analysis-123", "deep-analysis", "analysis-001", "patient"} <= names, names
    assert all(session["state"] == "live" for session in listed), listed
    deleted = await client.call_tool("delete_session", {"session_id": "patient"})
    assert not deleted.is_error, text_of(deleted)
    left = await read_json(client, "mcp://forge/sessions/list")
    assert "patient" not in json.dumps(left), left


async def check_restart(forge: Forge) -> None:
    async with forge.client("sessions-again", {}, python=sys.executable) as client:
        state = await read_json(client, "mcp://forge/sessions/analysis-123/state")
        assert state["state"] == "lost" and state["documented_variables"]["df"], state
        response = await execute(client, "df", session_id="analysis-123")
        assert response["outcome"] == "session_lost" and response["session"]["generation"] == 2, response
        code = "import os; os.listdir('/workspace/output')"
        response = await execute(client, code, session_id="analysis-001")
        assert response["outcome"] == "session_lost", response
        response = await completed(client, code, session_id="analysis-001")
        assert response["result"] == ["monthly.png"], response["result"]
