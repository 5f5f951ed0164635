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
from dataclasses import dataclass, replace
from functools import partial
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
/* a name ends before the arrow of its list */
.gradio-container input[role=combobox] { padding-right: 1.75rem; text-overflow: ellipsis; }
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


@dataclass(frozen=True)
class Seen:
    """What the pictures show: the readings of one text, its last byte, and the layer, the head and the query."""

    readings: list[Reading]
    last: int
    chosen: tuple[int, int, int] | None = None  # none where the controls say what cannot be drawn


def build(kept: list[Kept], other: Kept | None, text: str) -> Any:
    """The app as gradio's Blocks."""
    gr = imported()
    desk = Desk([*kept, *([other] if other is not None and other not in kept else [])])
    labels = list(desk.kept)
    begun = Seen([], len(text.encode()) - 1)

    def drawn(readings: list[Reading], layer: int, head: int, query: int, rolled: bool) -> str:
        ready = all(query in each.rolled for each in readings)
        rolled = rolled or ready or readings[0].length <= ROLLED
        return styled(page.shown(pictures.everything(readings, layer, head, query, rolled=rolled)))

    def see(
        text: str,
        model: str,
        beside: str,
        layer: int,
        head: int,
        query: float | None,
        before: Seen,
        rolled: bool = False,
    ) -> tuple[Any, ...]:
        """What is seen, then what the controls may say, then a line and the pictures."""
        asked = [model] if beside in (NOBODY, model) else [model, beside]
        same = [gr.update()] * 4

        def run() -> tuple[Any, ...]:
            readings = desk.read(asked, text.encode(errors="replace"), before.readings)
            layers, heads = (max(getattr(each, name) for each in readings) for name in ("layers", "heads"))
            i, j, last = min(layer or 0, layers - 1), min(head or 0, heads - 1), readings[0].length - 1
            at = query if last == before.last else kept_in(query, before.last, last)
            if at is None or at not in range(last + 1):
                said = warned(f"the query must be a whole number from 0 to {last}, the byte that looks")
                return replace(before, chosen=None), *same, said, gr.update()
            now = Seen(readings, last, (i, j, int(at)))
            if now == before and not rolled:
                return before, *same, gr.update(), gr.update()
            controls = [
                control(layer, i, choices=list(range(layers))),
                control(head, j, choices=list(range(heads))),
                control(query, at, maximum=max(last, 1)),
                gr.update(visible=last + 1 > ROLLED),
            ]
            return (
                now,
                *(same if readings == before.readings else controls),
                counted(readings),
                drawn(readings, i, j, int(at), rolled),
            )

        unread = replace(before, readings=[], chosen=None)
        return careful(run, lambda said: (unread, *same[:3], gr.update(visible=False), said, ""))

    def control(says: float | None, value: float, **given: Any) -> Any:
        """What says the value already is let alone: it may have been moved meanwhile."""
        return gr.update(**given) if says == value else gr.update(value=value, **given)

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
        return instead(warned(said))

    with gr.Blocks(title="Positions, seen", analytics_enabled=False) as blocks:
        seen = gr.State(begun, time_to_live=3600)
        gr.HTML(styled(f"<h1>Positions, seen</h1><p class='said'>{ABOUT}</p>"), padding=False)
        given = gr.Textbox(
            text,
            label=f"Text, up to {LONGEST:,} bytes",
            lines=5,
            max_lines=10,
            elem_id="given",
        )
        with gr.Row():
            model = gr.Dropdown(labels, value=labels[0], label="Model", elem_id="model", min_width=260)
            beside = gr.Dropdown(
                [NOBODY, *labels],
                value=NOBODY if other is None else other.label,
                label="Beside",
                elem_id="beside",
                min_width=260,
            )
            layer = gr.Dropdown([0], value=0, label="Layer", elem_id="layer", min_width=90)
            head = gr.Dropdown([0], value=0, label="Head", elem_id="head", min_width=90)
        query = gr.Slider(
            0,
            max(begun.last, 1),
            value=begun.last,
            step=1,
            label="Query: the byte that looks",
            elem_id="query",
            buttons=[],
        )
        with gr.Row():
            button = gr.Button("Read the text", variant="primary", elem_id="read", min_width=150)
            roll = gr.Button("Compute the rollout of this query", visible=False, elem_id="roll", min_width=150)
        line = gr.HTML(elem_id="line", padding=False)
        shown = gr.HTML(elem_id="seen", padding=False)

        chosen = [given, model, beside, layer, head, query, seen]
        changed = [seen, layer, head, query, roll, line, shown]
        # one after the other, for each begins where the last ended; the last choice counts, whatever was chosen while
        # a picture was drawn; and an empty box is for `see` to refuse
        settings = {"concurrency_id": "see", "trigger_mode": "always_last", "preprocess": False}
        reads = [button.click, model.select, beside.select, blocks.load]
        gr.on(reads, see, chosen, changed, show_progress="minimal", **settings)
        # at any change: the slider also moves by itself, to what it may say
        draws = [layer.select, head.select, query.change]
        gr.on(draws, see, chosen, changed, show_progress="hidden", **settings)
        roll.click(partial(see, rolled=True), chosen, changed, show_progress="full", **settings)
    return blocks


def kept_in(query: float | None, before: int, last: int) -> float:
    """The query that was chosen, in a text of another length; the last byte stays the last."""
    return last if query is None or query == before else min(query, last)


def counted(readings: list[Reading]) -> str:
    length = readings[0].length
    later = "" if length <= ROLLED else " The rollout of so long a text takes a while, and is computed when asked for."
    return styled(f'<p class="said">{page.tokens(length)}.{later}</p>')


def warned(said: str) -> str:
    return styled(f'<p class="warn" role="alert">{escape(said[:1].upper() + said[1:])}.</p>')


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


def serve(kept: list[Kept], other: Kept | None, text: str, port: int | None) -> None:
    """Until it is interrupted."""
    if port is not None:
        free(port)
    blocks = build(kept, other, text)
    address = launch(blocks, port)
    print(f"exploring at {address} (Ctrl-C ends it)", flush=True)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
    blocks.close(verbose=False)
