"""Named tensor dimensions of the package.

Every tensor argument and result is annotated with these letters (through jaxtyping, checked
in the tests only):

==========  =====================================================
``N``       instances of one bag
``T``       instances of all bags of a batch, packed end to end
``B``       bags of a batch
``D``       features of an instance, as the encoder computes them
``H``       hidden features of an instance, as the model pools them
``G``       inputs of the Gaussian process
``M``       inducing points
``S``       samples of the attention's posterior
``C``       outputs of a model, one a class
==========  =====================================================
"""

from jaxtyping import Bool, Float, Int, UInt8

__all__ = ["Bool", "Float", "Int", "UInt8"]
