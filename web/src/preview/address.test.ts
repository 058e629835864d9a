import assert from "node:assert/strict";
import { test } from "node:test";
import { framed } from "./address";

test("a page that came over https shows previews that do, too", () => {
  const name = "3000-iabc.sandbox.example:4980/";
  assert.equal(framed(`http://${name}`, "https:"), `https://${name}`);
  assert.equal(framed(`https://${name}`, "https:"), `https://${name}`);
  assert.equal(framed(`http://${name}`, "http:"), `http://${name}`);
  assert.equal(framed("http://3000-iabc.localhost:4980", "https:"), "http://3000-iabc.localhost:4980");
});
