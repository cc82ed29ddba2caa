"""The parameter table of the paper's private setting (tab:param-count), counted on the real networks."""

from mqcast.data.inputs import Inputs
from mqcast.nn.networks import Network
from mqcast.settings import ModelConfig, ResearchConfig

HORIZON = 52
PAPER = {"mqt-nods": 909_000, "mqcnn": 917_000, "mqt": 925_000, "mqt-all": 2_820_000}
SETTING = ModelConfig(
    hidden_dim=32,
    static_dim=64,
    head_dim=16,
    encoder_dilations=(1, 2, 4, 8, 16, 32),
    position_dilations=(1, 2, 4, 8, 16, 20),
    lookback=HORIZON,
    static_encoding="one_hot",
    context_dim=32,
    research=ResearchConfig(horizon_code=False, scale_inputs=False, position_norm=False),
)
FUTURE_CHANNELS = Inputs(global_numbers=4, known_numbers=4)


def num_parameters(network: Network) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def parameter_table(feedback_heads: str = "shared") -> dict[str, int]:
    """Model → parameters. The paper does not say how wide its one-hot static input is: it is fitted to MQT-NoDS."""

    def count(model: str, static_width: int) -> int:
        config = SETTING.replace(model=model, feedback_heads=feedback_heads)
        return num_parameters(Network(config, FUTURE_CHANNELS.replace(static_categories=(static_width,)), HORIZON))

    free = PAPER["mqt-nods"] - count("mqt-nods", 1)
    static_width = 1 + round(free / SETTING.static_dim)
    return {model: count(model, static_width) for model in PAPER}
