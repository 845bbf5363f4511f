"""A receiver as a good engineer writes it by hand in a day, with FastAPI and asyncpg, one uvicorn worker:
`python server.py <database url> <connections>`. It prints `listening <port>`, and ends when its standard input does."""

import hashlib
import hmac
import json
import os
import socket
import sys
import threading
import time
from contextlib import asynccontextmanager

import asyncpg
import uvicorn
from fastapi import FastAPI, Request, Response

SECRET = os.environ["SECRET"].encode()
# Older or newer signatures are refused.
TOLERANCE_S = 300
URL, CONNECTIONS = sys.argv[1], int(sys.argv[2])


@asynccontextmanager
async def lifespan(app: FastAPI):
    async with asyncpg.create_pool(URL, max_size=CONNECTIONS, min_size=min(10, CONNECTIONS)) as pool:
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


def verified(header: str | None, body: bytes) -> bool:
    """`t=<unix s>,v1=<hex>` over `<t>.<body>`, compared in constant time."""
    try:
        parts = dict(part.strip().split("=", 1) for part in (header or "").split(","))
        signed_at, signature = parts["t"], parts["v1"]
        if abs(time.time() - int(signed_at)) > TOLERANCE_S:
            return False
    except (KeyError, ValueError):
        return False
    expected = hmac.new(SECRET, signed_at.encode() + b"." + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, signature)


class Known(Exception):
    """The event was applied before."""


@app.post("/")
async def receive(request: Request) -> Response:
    body = await request.body()
    if not verified(request.headers.get("x-kudos-signature"), body):
        return Response(status_code=401)
    event = json.loads(body)
    try:
        async with app.state.pool.acquire() as connection, connection.transaction():
            inserted = await connection.execute(
                "INSERT INTO inbox (source, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                "crm",
                event["event_id"],
            )
            if inserted == "INSERT 0 0":
                raise Known
            await connection.execute(
                "INSERT INTO effect (event_id, account, amount) VALUES ($1, $2, $3)",
                event["event_id"],
                event["data"]["account"],
                event["data"]["amount"],
            )
    except Known:
        return Response(status_code=200)
    return Response(status_code=204)


def end_with_parent() -> None:
    while sys.stdin.buffer.read(64):
        pass
    os._exit(0)


class Server(uvicorn.Server):
    async def startup(self, sockets=None) -> None:
        await super().startup(sockets=sockets)
        print(f"listening {sockets[0].getsockname()[1]}", flush=True)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    listener = socket.create_server(("127.0.0.1", 0), backlog=2_048)
    Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
