"""Enrichment: joins each departure with the last known weather at its airport."""

from collections.abc import Iterator

from delays.departures import Document, IDerivation, Request


class Derivation(IDerivation):
    """Departures with weather. `self.state` has the values of one airport: that of the document."""

    def from_weather(self, read: Request.ReadFromWeather) -> None:
        doc = read.doc
        self.state = {"observed": doc.hour, "wind_speed": doc.wind_speed, "precip": doc.precip, "visib": doc.visib}

    def from_flights(self, read: Request.ReadFromFlights) -> Iterator[Document]:
        doc = read.doc
        if doc.dep_delay is None:
            return  # cancelled
        yield Document(
            carrier=doc.carrier,
            flight=doc.flight,
            origin=doc.origin,
            dest=doc.dest,
            scheduled=doc.scheduled,
            dep_delay=doc.dep_delay,
            distance=doc.distance,
            arr_delay=doc.arr_delay,
            **self.state,
        )
