import assert from "node:assert/strict";
import { test } from "node:test";
import { buildPath, parse, requestResume, consumeResumeRequest, hasResumeRequest } from "./route";

test("paths and pages", () => {
  assert.deepEqual(parse("/"), { page: "dashboard" });
  assert.deepEqual(parse(buildPath("job_1")), { page: "build", job: "job_1" });
  assert.deepEqual(parse("/login"), { page: "login", next: "/" });
  assert.deepEqual(parse("/login", "?next=%2Fjobs%2Fx"), { page: "login", next: "/jobs/x" });
  assert.deepEqual(parse("/jobs/%E0%A4"), { page: "build", job: "%E0%A4" });
  assert.deepEqual(parse("/nothing/here"), { page: "dashboard" });
});

test("signing in leads to a page of ours only", () => {
  for (const next of ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"]) {
    assert.deepEqual(parse("/login", `?next=${encodeURIComponent(next)}`), { page: "login", next: "/" });
  }
});

test("a resume request is consumed once, by its build", () => {
  Object.assign(globalThis, { history: { pushState() {} }, dispatchEvent() {}, scrollTo() {} });
  requestResume("job_1");
  assert.equal(hasResumeRequest("job_2"), false);
  assert.equal(consumeResumeRequest("job_2"), false);
  assert.equal(hasResumeRequest("job_1"), true);
  assert.equal(consumeResumeRequest("job_1"), true);
  assert.equal(hasResumeRequest("job_1"), false);
  assert.equal(consumeResumeRequest("job_1"), false);
});
