"""Code that exists only because of a GPU. Every operation also runs on a CPU, in plain torch.

Each of these functions chooses between a Triton program and torch code that computes the same:

- `carried_draws`: draws of a Gaussian process at inputs, and the covariance of its default kernel
- `cholesky`: Cholesky factors and their inverses
- `pooling`: softmax and weighted sums over bags
- `relu`: a linear layer and a ReLU
- `rows`: rows of resident bags, gathered and standardised

The rest is for training and prediction on a GPU alone:

- `programs`: Triton programs, compiled at their first launch
- `adam`: a step of Adam or AdamW in two launches
- `recording`: CUDA graphs, streams, random numbers
- `resident`: data sets whose features lie on a GPU
"""
