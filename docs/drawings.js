// Draws the Mermaid blocks of a page. The library (target/book/mermaid.min.js, put there by `./dev docs`) is fetched by pages that
// have a drawing only; without it a page shows their source.
(() => {
    const sources = [...document.querySelectorAll("code.language-mermaid")];
    if (sources.length === 0) return;
    const dark = ["navy", "coal", "ayu"].some((theme) => document.documentElement.classList.contains(theme));
    const library = document.createElement("script");
    library.src = `${path_to_root}mermaid.min.js`;
    library.onload = async () => {
        mermaid.initialize({ startOnLoad: false, securityLevel: "strict", suppressErrorRendering: true, theme: dark ? "dark" : "neutral" });
        for (const [index, source] of sources.entries()) {
            const { svg } = await mermaid.render(`drawing-${index}`, source.textContent).catch((error) => {
                console.error(source.textContent, error);
                return {};
            });
            if (!svg) continue;
            const drawing = document.createElement("figure");
            drawing.className = "drawing";
            drawing.innerHTML = svg;
            // The block with its button to copy.
            (source.closest("pre") ?? source).replaceWith(drawing);
        }
    };
    document.head.append(library);
})();
