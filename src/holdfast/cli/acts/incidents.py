"""What the demo's operators keep about hosts, beside what the pipeline has found out about them."""

from holdfast.bus import Event
from holdfast.ontology import Entity, Field, Relation
from holdfast.platform.census import Host

NAMESPACE = "demo"


class Incident(Entity):
    id: Field[str] = Field(primary_key=True)
    state: Field[str]


class Concerns(Relation[Incident, Host]):
    pass


class IncidentOpened(Event):
    incident: str
