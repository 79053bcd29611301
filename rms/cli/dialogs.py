"""What opens above the table of ``rms top``: questions before something is done, text to read."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from rms.client.actions import Action
from rms.wire.terminal import printable


class Question(ModalScreen[int]):
    """Says what will happen, and asks whether it shall: -1 for no, else a number of nodes or 0."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "no", "No"),
        Binding("y", "yes", "Yes"),
    ]
    DEFAULT_CSS = """
    Question { align: center middle; }
    Question > Vertical { width: 72; max-width: 95%; height: auto; border: round $warning;
        background: $surface; padding: 1 2; }
    Question Horizontal { height: auto; margin-top: 1; }
    Question Button { margin-right: 2; }
    """

    def __init__(self, action: Action) -> None:
        super().__init__()
        self._action = action

    def compose(self) -> ComposeResult:
        """Yield the sentence, the number if one is asked for, and the buttons."""
        with Vertical():
            yield Static(Text(printable(self._action.say)))
            if self._action.nodes:
                yield Input(str(self._action.nodes), type="integer", placeholder="nodes")
            with Horizontal():
                yield Button("Yes, do it (y)", id="yes", variant="warning")
                yield Button("No (n)", id="no")

    def on_mount(self) -> None:
        """Let nothing happen by Enter alone but where a number is typed."""
        self.query_one("Input" if self._action.nodes else "#no").focus()

    @on(Button.Pressed, "#no")
    def action_no(self) -> None:
        """Leave all as it is."""
        self.dismiss(-1)

    @on(Button.Pressed, "#yes")
    @on(Input.Submitted)
    def action_yes(self) -> None:
        """Do it, where a number is expected with one."""
        if not self._action.nodes:
            self.dismiss(0)
            return
        text = self.query_one(Input).value
        if text.isdecimal() and int(text):
            self.dismiss(int(text))
        else:
            self.notify("expected a number of nodes of at least 1", severity="error")


class Reader(ModalScreen[None]):
    """Lines of text to be read."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "close", "Close")]
    DEFAULT_CSS = """
    Reader { align: center middle; }
    Reader > VerticalScroll { width: 95%; height: 85%; border: round $primary;
        background: $surface; padding: 0 1; }
    """

    def __init__(self, title: str, lines: list[str], *, end: bool = False) -> None:
        super().__init__()
        self._title, self._lines, self._end = title, lines, end

    def compose(self) -> ComposeResult:
        """Yield the lines."""
        with VerticalScroll() as scroll:
            scroll.border_title = Text(f"{printable(self._title)} (Esc closes)").markup
            yield Static(Text("\n".join(map(printable, self._lines))))

    def on_mount(self) -> None:
        """Begin at the end of what has grown."""
        if self._end:
            self.query_one(VerticalScroll).scroll_end(animate=False)

    def action_close(self) -> None:
        """Go back to the table."""
        self.dismiss()
