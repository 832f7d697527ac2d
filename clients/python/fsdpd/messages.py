"""All messages and enums of the API, which protoc puts into a module per .proto file."""
from .v1.control_pb2 import *
from .v1.diagnosis_pb2 import *
from .v1.event_pb2 import *
from .v1.job_pb2 import *
from .v1.log_pb2 import *
from .v1.plan_pb2 import *
from .v1.spec_pb2 import *
from .v1.trace_pb2 import *
