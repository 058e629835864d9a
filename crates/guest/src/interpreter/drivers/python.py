# Runs cells of Python for the guest, one after the other, in one namespace.
#
# Reads cells as JSON lines from descriptor 3: {"code", "env"}. Writes results and errors as JSON
# lines to descriptor 4, then {"type": "done"}. Output of the cells goes to stdout and stderr.
import ast, asyncio, base64, importlib.abc, importlib.machinery, inspect, json, linecache, os, re, signal, site
import subprocess, sys, traceback, types

# Line-buffered, as clients expect; every response flushes the rest.
sys.stdout.reconfigure(line_buffering=True)
# Close-on-exec for processes that cells start.
os.set_inheritable(3, False)
os.set_inheritable(4, False)

MIMES = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
    "application/javascript": "javascript",
}
METHODS = {
    "_repr_html_": "html", "_repr_markdown_": "markdown", "_repr_svg_": "svg", "_repr_png_": "png",
    "_repr_jpeg_": "jpeg", "_repr_pdf_": "pdf", "_repr_latex_": "latex", "_repr_json_": "json",
    "_repr_javascript_": "javascript",
}


def respond(kind, **fields):
    sys.stdout.flush()
    sys.stderr.flush()
    line = (json.dumps({"type": kind, **fields}, default=str) + "\n").encode()
    while line:
        line = line[os.write(4, line):]


def plain(value):
    # Images and other bytes are base64 on the wire.
    return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else value


def formats(value):
    found, extra = {}, {}
    if not isinstance(value, type):
        bundle = getattr(value, "_repr_mimebundle_", None)
        if callable(bundle):
            data = bundle()
            for mime, content in (data[0] if isinstance(data, tuple) else data or {}).items():
                if mime in MIMES:
                    found[MIMES[mime]] = plain(content)
                else:
                    extra[mime] = plain(content)
        for method, name in METHODS.items():
            if name not in found and callable(getattr(value, method, None)):
                content = getattr(value, method)()
                content = content[0] if isinstance(content, tuple) else content
                if content is not None:
                    found[name] = plain(content)
        if type(value).__name__ == "DataFrame" and callable(getattr(value, "to_dict", None)):
            found["data"] = value.to_dict(orient="list")
        elif "json" not in found and isinstance(value, (dict, list)):
            try:
                json.dumps(value, allow_nan=False)
                found["json"] = value
            except (TypeError, ValueError, RecursionError):
                pass
    found.setdefault("text", repr(value))
    if extra:
        found["extra"] = extra
    return found


def display(*values):
    """Shows values in all their formats."""
    for value in values:
        respond("result", is_main_result=False, **formats(value))


def show_figures(*_, **__):
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    import io

    for number in pyplot.get_fignums():
        figure, image = pyplot.figure(number), io.BytesIO()
        figure.savefig(image, format="png", bbox_inches="tight")
        respond("result", is_main_result=False, text=repr(figure), png=plain(image.getvalue()))
    pyplot.close("all")


class Figures(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A matplotlib backend, created on import: figures become results instead of windows."""

    NAME = "sandbar_figures"

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == self.NAME else None

    def exec_module(self, module):
        from matplotlib.backend_bases import FigureManagerBase
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        module.FigureCanvas, module.FigureManager, module.show = FigureCanvasAgg, FigureManagerBase, show_figures


def shell(command):
    subprocess.run(command, shell=True, executable="/bin/bash")


def magic(name, rest):
    if name == "pip":
        shell(f"{sys.executable} -m pip {rest}")
    elif name == "cd":
        os.chdir(os.path.expanduser(rest.strip() or "~"))
    elif name == "env" and "=" in rest:
        variable, value = rest.split("=", 1)
        os.environ[variable.strip()] = value.strip()
    else:
        raise NameError(f"there is no magic %{name} here; there are %pip, %cd, %env and !command")


def plain_python(code):
    """Translates notebook syntax (magics, shell lines) to calls."""
    if code.lstrip().startswith("%%bash"):
        return f"__sandbar_shell__({code.lstrip().partition(chr(10))[2]!r})\n"
    try:
        ast.parse(code)
        return code
    except SyntaxError:
        lines = []
        for line in code.split("\n"):
            found = re.match(r"(\s*)(?:!(.+)|%(\w+)\s*(.*))$", line)
            if found and found[2]:
                line = f"{found[1]}__sandbar_shell__({found[2]!r})"
            elif found:
                line = f"{found[1]}__sandbar_magic__({found[3]!r}, {found[4]!r})"
            lines.append(line)
        return "\n".join(lines)


def run(code, name, loop):
    code = plain_python(code)
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    tree = ast.parse(code, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    flags, value = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, None
    for part, mode in ((tree, "exec"), (last, "eval")):
        if part is None:
            continue
        compiled = compile(part, name, mode, flags=flags)
        value = eval(compiled, main.__dict__)
        if compiled.co_flags & inspect.CO_COROUTINE:
            value = loop.run_until_complete(value)
    return value if last is not None else None


def report_error(error):
    """Formats the traceback from the cell's own frames on."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename == "<string>":
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    respond("error", name=type(error).__name__, value=str(error), traceback=text)


main = types.ModuleType("__main__")
main.__dict__.update(display=display, __sandbar_shell__=shell, __sandbar_magic__=magic, In=[], Out={})
sys.modules["__main__"] = main
sys.path[0] = ""
# Lets a cell import what the previous one installed, even if the directory is new.
if site.ENABLE_USER_SITE and site.getusersitepackages() not in sys.path:
    sys.path.append(site.getusersitepackages())
sys.argv = [""]
sys.meta_path.append(Figures())
os.environ.setdefault("MPLBACKEND", f"module://{Figures.NAME}")
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
count = 0
cells = os.fdopen(3, encoding="utf-8")
while True:
    # An interrupt is meant for the cell, not for this driver.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = cells.readline()
    if not line:
        break
    cell = json.loads(line)
    before = {name: os.environ.get(name) for name in cell["env"]}
    os.environ.update(cell["env"])
    count += 1
    importlib.invalidate_caches()
    try:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            value = run(cell["code"], f"<cell {count}>", loop)
            main.In.append(cell["code"])
            if value is not None:
                main._ = main.Out[count] = value
                respond("result", is_main_result=True, **formats(value))
            show_figures()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except BaseException as error:
        try:
            report_error(error)
        except Exception as second:
            respond("error", name=type(error).__name__, value="", traceback=f"it cannot be formatted: {second!r}")
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    respond("done")
