"""stub"""


def settle_in_rounds(engine, bundle, pricing, costs, files):
    raise NotImplementedError
