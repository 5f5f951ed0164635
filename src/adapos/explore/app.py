"""The app: a text, a model or two, a layer, a head and a query, and the pictures of them.

It listens on this machine alone and asks nothing of the network. gradio is imported here and nowhere else, when the
app is started.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from html import escape
from typing import Any

from adapos.explore import page, pictures
from adapos.explore.reading import LONGEST, Reading
from adapos.explore.shelf import Kept
from adapos.resident import exhausted

MISSING = "the app needs gradio: pip install 'adapos[explore]'; --static OUT.html writes a page without it"
HOST = "127.0.0.1"
NOBODY = "no other"
ROLLED = 1024  # tokens up to which the rollout is computed unasked

ABOUT = "What attention does with a text. A query is the byte that looks, a key a byte that it looks at."

# the pictures in the colours of gradio's theme, dark or light
STYLE = """
.positions { --ink: var(--body-text-color); --faint: color-mix(in srgb, var(--body-text-color) 72%, transparent);
  --line: var(--border-color-primary); --tint: var(--background-fill-secondary); --warn: var(--error-text-color);
  overflow-wrap: anywhere; }
.positions figcaption { color: var(--ink); }
.positions .warn { color: var(--warn); font-size: 1rem; margin: .5rem 0; }
.positions .said { color: var(--faint); font-size: .9rem; }
.gradio-container { max-width: 78rem !important; margin: 0 auto !important; }
"""


def imported() -> Any:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError:
        raise ValueError(MISSING) from None
    return gradio


class Desk:
    """The models that have been loaded; one text is read at a time, for reading listens at a model's hooks."""

    def __init__(self, kept: list[Kept]) -> None:
        self.kept = {each.label: each for each in kept}
        self.loaded: dict[str, Any] = {}
        self.lock = threading.Lock()

    def read(self, labels: list[str], text: bytes, before: list[Reading]) -> list[Reading]:
        """A text that has been read by a model is not read again."""
        known = {each.label: each for each in before if each.text == text}
        for label in labels:
            if label not in known:
                if label not in self.loaded:
                    self.loaded[label] = self.kept[label].load()
                known[label] = Reading(label, self.loaded[label], text)
        return [known[label] for label in labels]


def build(kept: list[Kept], other: Kept | None, text: bytes) -> Any:
    """The app as gradio's Blocks."""
    gr = imported()
    desk = Desk([*kept, *([other] if other is not None and other not in kept else [])])
    labels = list(desk.kept)

    def drawn(readings: list[Reading], layer: int, head: int, query: int, rolled: bool) -> str:
        if not readings:
            return ""
        ready = all(query in each.rolled for each in readings)
        rolled = rolled or ready or readings[0].length <= ROLLED
        return styled(page.shown(pictures.everything(readings, layer, head, query, rolled=rolled)))

    def read(text: str, model: str, beside: str, layer: int, head: int, before: list[Reading]) -> tuple[Any, ...]:
        """The readings, then what the controls may say, then a line and the pictures."""
        asked = [model] if beside in (NOBODY, model) else [model, beside]

        def run() -> tuple[Any, ...]:
            readings = desk.read(asked, text.encode(errors="replace"), before)
            layers, heads = (max(getattr(each, name) for each in readings) for name in ("layers", "heads"))
            i, j, last = min(layer or 0, layers - 1), min(head or 0, heads - 1), readings[0].length - 1
            return (
                readings,
                gr.update(choices=list(range(layers)), value=i),
                gr.update(choices=list(range(heads)), value=j),
                gr.update(maximum=max(last, 1), value=last),
                gr.update(visible=last + 1 > ROLLED),
                counted(readings),
                drawn(readings, i, j, last, False),
            )

        return careful(run, lambda said: ([], *[gr.update()] * 3, gr.update(visible=False), said, ""))

    def show(readings: list[Reading], layer: int, head: int, query: float, rolled: bool = False) -> tuple[Any, ...]:
        def run() -> tuple[Any, ...]:
            if not readings:
                return gr.update(), ""
            last = readings[0].length - 1
            if query is None or not 0 <= query <= last:
                raise ValueError(f"the query must be a byte from 0 to {last}")
            return counted(readings), drawn(readings, layer, head, int(query), rolled)

        return careful(run, lambda said: (said, gr.update()))

    def careful(run: Callable[[], tuple[Any, ...]], instead: Callable[[str], tuple[Any, ...]]) -> tuple[Any, ...]:
        """What is wrong with a text or a model is a sentence on the page."""
        with desk.lock:
            try:
                return run()
            except ValueError as problem:
                said = str(problem)
            except (MemoryError, RuntimeError) as problem:
                if not exhausted(problem):
                    raise
                said = "there is not memory enough for this; give a shorter text"
        sentence = said[:1].upper() + said[1:]
        return instead(styled(f'<p class="warn" role="alert">{escape(sentence)}.</p>'))

    with gr.Blocks(title="Positions, seen", analytics_enabled=False) as blocks:
        readings = gr.State([], time_to_live=3600)
        gr.HTML(styled(f"<h1>Positions, seen</h1><p class='said'>{ABOUT}</p>"), padding=False)
        given = gr.Textbox(
            text.decode(errors="replace"),
            label=f"Text, up to {LONGEST:,} bytes",
            lines=5,
            max_lines=10,
            elem_id="given",
        )
        with gr.Row():
            model = gr.Dropdown(labels, value=labels[0], label="Model", elem_id="model", min_width=150)
            beside = gr.Dropdown(
                [NOBODY, *labels],
                value=NOBODY if other is None else other.label,
                label="Beside",
                elem_id="beside",
                min_width=150,
            )
            layer = gr.Dropdown([0], value=0, label="Layer", elem_id="layer", min_width=90)
            head = gr.Dropdown([0], value=0, label="Head", elem_id="head", min_width=90)
        query = gr.Slider(0, 1, value=0, step=1, label="Query: the byte that looks", elem_id="query")
        with gr.Row():
            button = gr.Button("Read the text", variant="primary", elem_id="read", min_width=150)
            roll = gr.Button("Compute the rollout of this query", visible=False, elem_id="roll", min_width=150)
        line = gr.HTML(elem_id="line", padding=False)
        seen = gr.HTML(elem_id="seen", padding=False)

        chosen = [given, model, beside, layer, head, readings]
        changed = [readings, layer, head, query, roll, line, seen]
        gr.on([button.click, model.select, beside.select, blocks.load], read, chosen, changed, show_progress="minimal")
        # the last choice counts, whatever was chosen while a picture was drawn
        gr.on(
            [layer.select, head.select, query.input],
            show,
            [readings, layer, head, query],
            [line, seen],
            trigger_mode="always_last",
            show_progress="hidden",
        )

        def with_rollout(readings: list[Reading], layer: int, head: int, query: float) -> tuple[Any, ...]:
            return show(readings, layer, head, query, True)

        roll.click(with_rollout, [readings, layer, head, query], [line, seen], show_progress="full")
    return blocks


def counted(readings: list[Reading]) -> str:
    length = readings[0].length
    later = "" if length <= ROLLED else " The rollout of so long a text takes a while, and is computed when asked for."
    return styled(f'<p class="said">{length:,} bytes, each of them a token.{later}</p>')


def styled(body: str) -> str:
    return f'<div class="positions">{body}</div>'


def launch(blocks: Any, port: int | None) -> str:
    """Started in the background, on this machine alone; the address."""
    gr = imported()
    theme = gr.themes.Default(
        primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )
    settings: dict[str, Any] = {
        "server_name": HOST,
        "share": False,
        "quiet": True,
        "prevent_thread_lock": True,
        "ssr_mode": False,
        "footer_links": [],
        "theme": theme,
        "css": page.STYLE + STYLE,
        "head": f"<script>{page.SAVE}</script>",
    }
    try:
        _, address, _ = blocks.launch(server_port=port, **settings)
    except OSError:
        raise ValueError(
            f"{f'port {port}' if port else 'every port'} is taken on {HOST}; give another --port"
        ) from None
    return str(address)


def free(port: int) -> None:
    """See that nobody listens there, sooner and in fewer words than gradio would."""
    with socket.socket() as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            asked.bind((HOST, port))
        except OSError as problem:
            raise ValueError(f"port {port} cannot be had ({problem.strerror}); give another --port") from None


def serve(kept: list[Kept], other: Kept | None, text: bytes, port: int | None) -> None:
    """Until it is interrupted."""
    if port is not None:
        free(port)
    blocks = build(kept, other, text)
    address = launch(blocks, port)
    print(f"exploring at {address} (Ctrl-C ends it)", flush=True)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
    blocks.close(verbose=False)
