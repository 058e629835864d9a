// Short links: POST /links {"url": …} gives an id, GET /ID leads there.
import express from "express";
import { nanoid } from "nanoid";

const links = new Map();
const app = express();
app.use(express.json());
app.get("/", (_request, response) => response.json({ app: "node-app", links: links.size }));
app.post("/links", (request, response) => {
  const { url } = request.body ?? {};
  if (typeof url !== "string" || !URL.canParse(url)) return response.status(400).json({ error: "url is missing" });
  const id = nanoid(8);
  links.set(id, url);
  return response.status(201).json({ id });
});
app.get("/:id", (request, response) => {
  const url = links.get(request.params.id);
  return url ? response.redirect(url) : response.status(404).json({ error: "no such link" });
});
app.listen(process.env.PORT, () => console.log(`listening on ${process.env.PORT}`));
