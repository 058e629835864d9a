import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError, Offline, explain } from "./api";

const refused = (message: string, hint?: string) => explain(new ApiError(409, { code: 409, message, ...(hint ? { hint } : {}) }));

test("a refusal is explained in sentences with a hint", () => {
  assert.equal(refused("too many requests", "wait a moment"), "Too many requests. Wait a moment.");
  assert.equal(refused("the build is still being finished; try again"), "The build is still being finished; try again.");
  assert.equal(refused("This will use 1 build credit. Continue?"), "This will use 1 build credit. Continue?");
  assert.equal(refused("Names end in a letter.", "`sandbar user list` names all"), "Names end in a letter. `sandbar user list` names all.");
});

test("other failures speak for themselves", () => {
  assert.equal(explain(new Offline()), "Sandbar can't be reached right now.");
  assert.equal(explain("what?"), "what?");
});
