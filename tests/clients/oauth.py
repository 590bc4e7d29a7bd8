"""The official SDK finds its own way to a token: from our refusal to who issues them, and back with one.

The authorization server is a small one of our own: it registers whoever asks, consents to everything,
and signs access tokens that are soon over.
"""

import asyncio
import base64
import hashlib
import random
import secrets
import socket
import time
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from harness import Checks, Forge, completed
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata
from over_http import ERAS, Served
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

# How long its access tokens are good for, in seconds.
LIFETIME = 25


def free_port() -> int:
    """A port for a program that must be told one. It is below those that are given to whoever asks for any,
    so nobody else has taken it by the time that the program does.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as listener:
            if listener.connect_ex(("127.0.0.1", port)) != 0:
                return port


class AuthorizationServer:
    """OAuth 2.1 with metadata (RFC 8414), registration (RFC 7591), PKCE and resource indicators (RFC 8707)."""

    def __init__(self, port: int) -> None:
        self.issuer = f"http://127.0.0.1:{port}/realm"
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.codes = {}
        self.refresh_tokens = {}
        self.issued = []

    def routes(self) -> list[Route]:
        return [
            Route("/.well-known/oauth-authorization-server/realm", self.metadata),
            Route("/realm/keys", self.keys),
            Route("/realm/register", self.register, methods=["POST"]),
            Route("/realm/authorize", self.authorize),
            Route("/realm/token", self.token, methods=["POST"]),
        ]

    async def metadata(self, _request):
        return JSONResponse(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "registration_endpoint": f"{self.issuer}/register",
                "jwks_uri": f"{self.issuer}/keys",
                "code_challenge_methods_supported": ["S256"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "authorization_response_iss_parameter_supported": True,
            }
        )

    async def keys(self, _request):
        key = jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return JSONResponse({"keys": [key | {"kid": "k", "use": "sig", "alg": "ES256"}]})

    async def register(self, request):
        client = await request.json()
        return JSONResponse(client | {"client_id": secrets.token_hex(8), "token_endpoint_auth_method": "none"}, 201)

    async def authorize(self, request):
        asked = dict(request.query_params)
        assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256", asked
        code = secrets.token_hex(16)
        self.codes[code] = asked
        answer = urlencode({"code": code, "state": asked["state"], "iss": self.issuer})
        return RedirectResponse(f"{asked['redirect_uri']}?{answer}", 302)

    async def token(self, request):
        form = dict(await request.form())
        if form["grant_type"] == "refresh_token":
            grant = self.refresh_tokens.pop(form["refresh_token"])
        else:
            asked = self.codes.pop(form["code"])
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == asked["code_challenge"]
            grant = {"scope": asked["scope"], "resource": asked["resource"], "client_id": asked["client_id"]}
        assert form["resource"] == grant["resource"], form
        self.issued.append((form["grant_type"], grant["scope"], grant["resource"]))
        refresh = secrets.token_hex(16)
        self.refresh_tokens[refresh] = grant
        claims = {
            "iss": self.issuer,
            "aud": grant["resource"],
            "sub": "ada",
            "client_id": grant["client_id"],
            "scope": grant["scope"],
            "iat": int(time.time()),
            "exp": int(time.time()) + LIFETIME,
            "jti": secrets.token_hex(8),
        }
        return JSONResponse(
            {
                "access_token": jwt.encode(claims, self.key, "ES256", {"kid": "k", "typ": "at+jwt"}),
                "token_type": "Bearer",
                "expires_in": LIFETIME,
                "scope": grant["scope"],
                "refresh_token": refresh,
            }
        )

    @classmethod
    @asynccontextmanager
    async def start(cls):
        port = free_port()
        issuer = cls(port)
        app = Starlette(routes=issuer.routes())
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
        serving = asyncio.create_task(server.serve())
        try:
            while not server.started:
                assert not serving.done(), "the authorization server did not start"
                await asyncio.sleep(0.01)
            yield issuer
        finally:
            server.should_exit = True
            await serving


class Memory:
    """Where the SDK keeps its tokens."""

    def __init__(self) -> None:
        self.tokens = None
        self.client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens) -> None:
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client) -> None:
        self.client = client


def provider(url: str) -> OAuthClientProvider:
    """The SDK's own way to a token; the person in front of the browser consents at once."""
    answers = asyncio.Queue()

    async def open_browser(address: str) -> None:
        async with httpx2.AsyncClient(timeout=120) as browser:
            redirected = await browser.get(address)
        assert redirected.status_code == 302, redirected
        query = parse_qs(urlsplit(redirected.headers["location"]).query)
        await answers.put(AuthorizationCodeResult(**{name: values[0] for name, values in query.items()}))

    metadata = OAuthClientMetadata(client_name="test", redirect_uris=["http://127.0.0.1:1/back"])
    return OAuthClientProvider(url, metadata, Memory(), open_browser, answers.get)


async def run_oauth(checks: Checks, forge: Forge) -> None:
    async with AuthorizationServer.start() as issuer:
        port = free_port()
        resource = f"http://127.0.0.1:{port}/mcp"
        oauth = {
            "resource": resource,
            "leeway": 0,
            "issuers": {"realm": {"issuer": issuer.issuer, "jwks_url": f"{issuer.issuer}/keys"}},
        }
        async with Served.start(forge, "oauth", port, server={"oauth": oauth}) as served:
            for mode, version in ERAS.items():
                name = f"OAuth, {version}: the SDK finds the issuer, gets a token, renews it"
                await checks.run(name, check_discovery, served, issuer, mode, resource, seconds=180)
            await checks.run("OAuth: the SDK asks for more when a scope is missing", check_step_up, served, issuer)


async def check_discovery(served: Served, issuer: AuthorizationServer, mode: str, resource: str) -> None:
    # A new server's first turn may take as long as a token is good for: this one is not timed.
    async with served.client(mode) as client:
        await completed(client, "1")
    issuer.issued.clear()
    async with httpx2.AsyncClient(auth=provider(resource), timeout=60) as http:
        async with Client(streamable_http_client(resource, http_client=http), mode=mode) as client:
            assert client.protocol_version == ERAS[mode], client.protocol_version
            assert (await completed(client, "x = 41", session_id=f"oauth-{mode}"))["success"]
            assert issuer.issued == [("authorization_code", "mcp:run", resource)], issuer.issued
            # Until the token is over: the next call renews it, and the session is its owner's still.
            await asyncio.sleep(LIFETIME + 1)
            assert (await completed(client, "x + 1", session_id=f"oauth-{mode}"))["result"] == 42
            assert ("refresh_token", "mcp:run", resource) in issuer.issued, issuer.issued


async def check_step_up(served: Served, issuer: AuthorizationServer) -> None:
    async with httpx2.AsyncClient(auth=provider(f"{served.url}/mcp"), timeout=60) as http:
        assert (await http.get(f"{served.url}/api/v1/sessions")).status_code == 200
        issuer.issued.clear()
        audit = await http.get(f"{served.url}/api/v1/audit")
        assert audit.status_code == 200, audit.text
        assert "realm/ada" in audit.text, audit.text
        (grant, scope, _), = issuer.issued
        assert grant == "authorization_code" and set(scope.split()) == {"mcp:run", "mcp:admin"}, issuer.issued
