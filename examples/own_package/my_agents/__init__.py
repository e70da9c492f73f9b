"""An environment, a network and an algorithm, each with the name that shoal knows it by."""

import shoal
from my_agents.algorithm import AWR
from my_agents.environment import Stream
from my_agents.network import Waves

shoal.register(env={"stream": Stream}, net={"waves": Waves}, algo={"awr": AWR})
