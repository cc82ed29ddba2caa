"""How wide a network's inputs are: all that it needs to know of a panel. No torch."""

from mqcast.data.calendar import Calendar
from mqcast.data.panel import Panel
from mqcast.settings import Settings


class Inputs(Settings):
    """Numbers of columns, and of values of each category (its unknown included), in a batch's order."""

    past_numbers: int = 0
    past_categories: tuple[int, ...] = ()
    known_numbers: int = 0
    known_flags: tuple[int, ...] = ()  # which of the known numbers are flags
    echo_numbers: int = 0  # how many of the known numbers, the last, are echoes
    precedents: int = 0  # of each target at each creation time
    known_categories: tuple[int, ...] = ()
    global_numbers: int = 0
    global_flags: tuple[int, ...] = ()  # which of the global numbers are flags
    calendar: tuple[int, ...] = ()  # global categories that are never unknown come first
    event_categories: tuple[int, ...] = ()
    static_numbers: int = 0
    static_categories: tuple[int, ...] = ()

    @classmethod
    def of(cls, panel: Panel, calendar: Calendar | None = None) -> "Inputs":
        """Those of a panel, with another calendar than its own if one is given."""
        schema, calendar = panel.schema, calendar or panel.calendar

        def sizes(role) -> tuple[int, ...]:
            return tuple(len(panel.vocabularies[name]) + 1 for name in schema.categories(role))

        def flags(names: tuple[str, ...]) -> list[int]:
            return [i for i, name in enumerate(names) if schema.kinds[name] == "flag"]

        num_holidays = len(calendar.holidays)
        num_calendar = num_holidays + calendar.num_waves
        return cls(
            past_numbers=len(schema.numbers("past")),
            past_categories=sizes("past"),
            known_numbers=len(schema.numbers("known")),
            known_flags=tuple(flags(schema.numbers("known"))),
            known_categories=sizes("known"),
            global_numbers=num_calendar + len(schema.numbers("events")),
            global_flags=(*range(num_holidays), *(num_calendar + i for i in flags(schema.numbers("events")))),
            calendar=calendar.num_values,
            event_categories=sizes("events"),
            static_numbers=len(schema.numbers("static")),
            static_categories=sizes("static"),
        )

    def widths(self) -> dict[str, int]:
        """How many columns each block of a batch has."""
        return {
            "past_number": self.past_numbers,
            "past_category": len(self.past_categories),
            "known_number": self.known_numbers,
            "known_category": len(self.known_categories),
            "precedent": self.precedents,
            "precedent_level": self.precedents,
            "global_number": self.global_numbers,
            "global_category": len(self.calendar) + len(self.event_categories),
            "static_number": self.static_numbers,
            "static_category": len(self.static_categories),
        }
