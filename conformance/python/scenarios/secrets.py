"""Secrets: values go in, and come out by no call."""

import e2b
from harness import equal, proves, true


def _secret(sdk):
    return e2b.AsyncSecret if sdk.is_async else e2b.Secret


@proves("secrets", needs="secret")
async def scenario_life(sdk):
    secret, name = _secret(sdk), f"{sdk.mark}-Key".replace(".", "-")
    made = await sdk.do(secret.create, name, "value-1", metadata={"team": "a"})
    try:
        equal((made.name, made.version, made.metadata), (name.lower(), 1, {"team": "a"}), "what was made")
        equal((await sdk.do(secret.get_info, made.secret_id)).name, name.lower(), "by its identifier")
        equal((await sdk.do(secret.get_info, name)).secret_id, made.secret_id, "by its name")
        changed = await sdk.do(secret.update, name, "value-2")
        equal((changed.version, changed.metadata), (2, {"team": "a"}), "after a new value")
        true(changed.updated_at >= changed.created_at, "it was changed after it was made")
        pages, found = secret.list(limit=1), []
        while pages.has_next and len(found) < 1000:
            found += [one.secret_id for one in await sdk.do(pages.next_items)]
        true(made.secret_id in found and len(set(found)) == len(found), "listed once, page by page")
        equal(secret.fill("k"), "${e2b.secrets.k}", "a placeholder")
        equal(await sdk.do(secret.exists, name), True, "it is there")
        await sdk.raises(e2b.SecretException, secret.create, name, "again")
        shown = await sdk.http("GET", f"/secrets/{made.secret_id}")
        true("value-" not in shown.text, f"no value is given back: {shown.text}")
    finally:
        equal(await sdk.do(secret.destroy, made.secret_id), True, "it is deleted")
    equal(await sdk.do(secret.destroy, made.secret_id), False, "it was gone already")
    equal(await sdk.do(secret.exists, name), False, "it is gone")
    await sdk.raises(e2b.SecretNotFoundException, secret.get_info, name)
