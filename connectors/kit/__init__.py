"""The kit of materialize connectors: a connector implements a few methods, and the kit implements the protocol.

`connector.py` defines the protocols `MaterializeConnector` and `Session`, `requests.py` the requests to a connector,
and `stored.py` the rows that it stores.
"""

from connectors.kit.connector import CancellableSession as CancellableSession
from connectors.kit.connector import MaterializeConnector as MaterializeConnector
from connectors.kit.connector import NarrowerSession as NarrowerSession
from connectors.kit.connector import RefillingSession as RefillingSession
from connectors.kit.connector import Session as Session
from connectors.kit.requests import Application as Application
from connectors.kit.requests import Applied as Applied
from connectors.kit.requests import Binding as Binding
from connectors.kit.requests import ConnectorSpec as ConnectorSpec
from connectors.kit.requests import Difference as Difference
from connectors.kit.requests import DriverCheckpoint as DriverCheckpoint
from connectors.kit.requests import Field as Field
from connectors.kit.requests import Materialization as Materialization
from connectors.kit.requests import Opening as Opening
from connectors.kit.requests import ProposedBinding as ProposedBinding
from connectors.kit.requests import SourceCollection as SourceCollection
from connectors.kit.requests import StoredRows as StoredRows
from connectors.kit.requests import ValidatedBinding as ValidatedBinding
from connectors.kit.requests import Validation as Validation
from connectors.kit.requests import Value as Value
from derive.protocol.materialization import FIRST as FIRST
from derive.protocol.materialization import Constraint as Constraint
from derive.protocol.materialization import ConstraintType as ConstraintType
