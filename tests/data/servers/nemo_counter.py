"""NeMo Gym's counter with a session, served alone: what its own launcher starts, without the rest of it."""

import sys

import uvicorn
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf
from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer as Counter

port = int(sys.argv[1])
config = Counter.model_fields["config"].annotation
head = ServerClient(head_server_config={"host": "", "port": 0}, global_config_dict=OmegaConf.create({}))
server = Counter(
    config=config(host="127.0.0.1", port=port, entrypoint="", name="counter", domain="agent"), server_client=head
)
uvicorn.run(server.setup_webserver(), host="127.0.0.1", port=port, log_level="error")
