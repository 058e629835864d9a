"""Listing sandboxes: filters, order, pages."""

import datetime

import e2b
from harness import equal, proves, true


def ids(pages) -> list[str]:
    return [info.sandbox_id for page in pages for info in page]


def marked(sdk, **query):
    return e2b.SandboxQuery(metadata={"mark": sdk.mark}, **query)


@proves("list", "list.paging", quick=True)
async def scenario_paging(sdk):
    """Pages of one over running and paused sandboxes: each exactly once."""
    boxes = [await sdk.create(metadata={"n": str(n)}) for n in range(4)]
    for box in boxes[1:3]:
        await sdk.pause(box)
    pages = await sdk.pages(sdk.Sandbox.list(query=marked(sdk), limit=1))
    equal([len(page) for page in pages if page], [1, 1, 1, 1], "sizes of the pages")
    equal(sorted(ids(pages)), sorted(box.sandbox_id for box in boxes), "each sandbox once")
    equal(ids(pages), [box.sandbox_id for box in reversed(boxes)], "youngest first")
    states = {info.sandbox_id: getattr(info.state, "value", info.state) for page in pages for info in page}
    expected = ["running", "paused", "paused", "running"]
    equal([states[box.sandbox_id] for box in boxes], expected, "states in the listing")
    whole = await sdk.pages(sdk.Sandbox.list(query=marked(sdk)))
    equal(len(ids(whole)), 4, "all on one page")
    equal(whole[0][0].metadata["n"], "3", "metadata in the listing")

    first = sdk.Sandbox.list(query=marked(sdk), limit=2)
    await sdk.do(first.next_items)
    rest = await sdk.pages(sdk.Sandbox.list(query=marked(sdk), limit=2, next_token=first.next_token))
    equal(ids(rest), [boxes[1].sandbox_id, boxes[0].sandbox_id], "continued from a token")


@proves("list.metadata")
async def scenario_metadata_filter(sdk):
    odd = {"a b&c=d%20": "x/y+z=ž &%25?"}
    box = await sdk.create(metadata=odd)
    await sdk.create(metadata={"a b&c=d%20": "other"})
    query = e2b.SandboxQuery(metadata={"mark": sdk.mark, **odd})
    equal(ids(await sdk.pages(sdk.Sandbox.list(query=query))), [box.sandbox_id], "odd characters in key and value")
    query = e2b.SandboxQuery(metadata={"mark": sdk.mark, "a b&c=d%20": "x/y"})
    equal(ids(await sdk.pages(sdk.Sandbox.list(query=query))), [], "a part of the value is no match")


@proves("list.state")
async def scenario_state_filter(sdk):
    running, paused = await sdk.create(), await sdk.create()
    await sdk.pause(paused)
    states = e2b.SandboxState

    async def listed(*wanted):
        return sorted(ids(await sdk.pages(sdk.Sandbox.list(query=marked(sdk, state=list(wanted))))))

    equal(await listed(states.RUNNING), [running.sandbox_id], "running only")
    equal(await listed(states.PAUSED), [paused.sandbox_id], "paused only")
    both = sorted([running.sandbox_id, paused.sandbox_id])
    equal(await listed(states.RUNNING, states.PAUSED), both, "both states")
    equal(sorted(ids(await sdk.pages(sdk.Sandbox.list(query=marked(sdk))))), both, "no state means both")


@proves("list.order", needs="list.order")
async def scenario_order(sdk):
    boxes = [await sdk.create() for _ in range(3)]
    made = [box.sandbox_id for box in boxes]
    ascending = sdk.Sandbox.list(query=marked(sdk), order="asc", limit=2)
    equal(ids(await sdk.pages(ascending)), made, "ascending, over pages")
    equal(ids(await sdk.pages(sdk.Sandbox.list(query=marked(sdk), order="desc"))), made[::-1], "descending")


@proves("list.started_after", needs="list.started_after")
async def scenario_started_after(sdk):
    boxes = [await sdk.create() for _ in range(3)]
    second = (await sdk.do(boxes[1].get_info)).started_at
    found = ids(await sdk.pages(sdk.Sandbox.list(query=marked(sdk, started_after=second))))
    equal(found, [boxes[2].sandbox_id, boxes[1].sandbox_id], "started at or after the second one")
    later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    equal(ids(await sdk.pages(sdk.Sandbox.list(query=marked(sdk, started_after=later)))), [], "nothing from the future")


@proves("list.template", needs="list.template")
async def scenario_template_filter(sdk):
    box = await sdk.create()
    equal(ids(await sdk.pages(sdk.Sandbox.list(query=marked(sdk, template="base")))), [box.sandbox_id], "by name")
    template_id = (await sdk.do(box.get_info)).template_id
    found = ids(await sdk.pages(sdk.Sandbox.list(query=marked(sdk, template=template_id))))
    equal(found, [box.sandbox_id], "by ID")
    unknown = await sdk.pages(sdk.Sandbox.list(query=marked(sdk, template="no-such-template")))
    equal(ids(unknown), [], "an unknown template gives an empty list")
    true(unknown, "a page was answered")
