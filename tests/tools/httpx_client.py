"""Python's httpx as a client: requests of all kinds side by side, every byte of every answer compared.

Says on one line what it did, and fails when anything went wrong. The other side is `gohttp server`.
"""

import argparse
import asyncio
import random
import ssl
import sys

import httpx

# Borders of frames and windows, and small bodies in between.
SIZES = [0, 1, 9, 100, 1_000, 4_096, 16_384, 16_385, 65_535, 65_536]
CLIENTS = 4
TASKS = 16


def pattern(size: int, seed: int) -> bytes:
    """What `gohttp` makes of the same size and seed."""
    mask = (1 << 64) - 1
    state = (seed * 0x9E3779B97F4A7C15) & mask | 1
    words = []
    for _ in range(0, size, 8):
        state ^= (state << 13) & mask
        state ^= state >> 7
        state ^= (state << 17) & mask
        words.append(state.to_bytes(8, "little"))
    return b"".join(words)[:size]


async def chunks(body: bytes):
    """A body whose length is not announced, in pieces."""
    for at in range(0, len(body), 10_000):
        yield body[at : at + 10_000]


async def request(client: httpx.AsyncClient, version: str, url: str, nth: int) -> None:
    """Sends one request and compares its answer."""
    chosen = random.Random(nth)
    size = 1 << 20 if nth % 500 == 0 else chosen.choice(SIZES)
    expected = pattern(size, nth)
    kind = chosen.randrange(4)
    if kind == 0:
        response = await client.post(url, content=chunks(expected))
    elif kind == 1:
        response = await client.put(url, content=expected)
    else:
        response = await client.get(url, params={"size": size, "seed": nth})
    what = f"request {nth}, kind {kind} of {size} bytes"
    assert response.is_success, f"{what}: {response.status_code} {response.content[:200]!r}"
    assert response.http_version == version, f"{what}: answered in {response.http_version}"
    assert response.content == expected, f"{what}: answered with {len(response.content)} other bytes"


async def run(arguments: argparse.Namespace) -> None:
    """Clients with a pool of connections each, and tasks that share a client."""
    version = "HTTP/1.1" if arguments.http1 else "HTTP/2"
    tls = ssl.create_default_context(cafile=arguments.ca)
    numbers = iter(range(arguments.requests))

    async def work(client: httpx.AsyncClient) -> None:
        for nth in numbers:
            await request(client, version, arguments.urls[nth % len(arguments.urls)], nth)

    def make() -> httpx.AsyncClient:
        return httpx.AsyncClient(http1=arguments.http1, http2=not arguments.http1, verify=tls, timeout=60, trust_env=False)

    clients = [make() for _ in range(CLIENTS)]
    await asyncio.gather(*(work(client) for client in clients for _ in range(TASKS)))
    for client in clients:
        await client.aclose()
    print(f"{arguments.requests} requests in {version}, 0 failures")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ca", required=True, help="authority of the server's certificate, PEM")
    parser.add_argument("--http1", action="store_true", help="HTTP/1.1 in place of HTTP/2")
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("urls", nargs="+")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
