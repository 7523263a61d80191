"""Densities of codes: mixtures of Gaussians, fitted by EM on the device of the codes, and kernel densities."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ncode import InputError
from ncode.errors import check_count, check_number

from .checks import check_codes
from .clustering import Progress, k_means

LOG_2_PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Fitted:
    """Components, the mean log-likelihood per code before each iteration, and whether the fit converged."""

    weights: Tensor
    gaussians: Gaussians
    log_likelihoods: list[float]
    converged: bool


class GaussianMixture:
    """A mixture of Gaussians with full covariances, fitted by expectation-maximisation (EM) in float64.

    The fit starts from k-means and stops when the mean log-likelihood per code changes by less than `tol`, or after
    `max_iterations`. `reg_covar`, e below, is added to every variance: it keeps the covariance of a component with
    fewer codes than dimensions invertible, and is its variance in the directions without data.

    Without e, no iteration lowers the likelihood. With e, the covariance of component k becomes C_k = S_k + e I, which
    maximises the expected log-likelihood minus (e / 2) n_k tr(C_k^-1), with n_k the codes of the component. So an
    iteration from C_k to C'_k raises the mean log-likelihood by at least (e / 2) sum_k w'_k (tr(C'_k^-1) - tr(C_k^-1)),
    with w' the new weights; this bound may be negative. Rounding adds an error of up to the float64 resolution times
    (largest squared code) / (smallest variance), which is large for a component that collapsed to a variance of e.

    >>> import torch, ncode_lab.metrics
    >>> codes = torch.cat([torch.randn(200, 2), torch.randn(200, 2) + 8])
    >>> mixture = ncode_lab.metrics.GaussianMixture(2).fit(codes)
    >>> mixture.means.mean(1).sort().values.round().abs()
    tensor([0., 8.], dtype=torch.float64)
    >>> mixture.sample(5, torch.Generator().manual_seed(0)).shape
    torch.Size([5, 2])
    """

    def __init__(self, components: int, *, tol: float = 1e-3, max_iterations: int = 100, reg_covar: float = 1e-6):
        self.components = check_count("components", components)
        self.tol = check_number("tol", tol, low=0.0)
        self.max_iterations = check_count("max_iterations", max_iterations)
        self.reg_covar = check_number("reg_covar", reg_covar, low=0.0)
        self._fitted: Fitted | None = None

    @torch.no_grad()
    def fit(
        self,
        codes: Tensor,
        *,
        responsibilities: Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> GaussianMixture:
        """Fit to codes (n, d) and return self.

        Args:
            codes: The codes, (n, d).
            responsibilities: (n, components), to start from. Default: the clusters of k-means.
            generator: Makes k-means repeatable.
            progress: Called as progress(stage, done, total) after each iteration.
        """
        x = self._check(codes).double()
        if responsibilities is None:
            labels = k_means(x, self.components, generator=generator, progress=progress).labels
            share = torch.nn.functional.one_hot(labels, self.components).double()
        else:
            share = self._check_responsibilities(responsibilities, x)
        weights, gaussians = self._maximise(x, share)
        del share
        history, converged = [], False
        for iteration in range(1, self.max_iterations + 1):
            joint = _log_joint(x, weights, gaussians)
            total = joint.logsumexp(1, keepdim=True)
            history.append(float(total.mean()))
            weights, gaussians = self._maximise(x, joint.sub_(total).exp_())
            if progress is not None:
                progress("mixture", iteration, self.max_iterations)
            converged = len(history) > 1 and abs(history[-1] - history[-2]) < self.tol
            if converged:
                break
        self._fitted = Fitted(weights, gaussians, history, converged)
        return self

    def _check(self, codes: Any) -> Tensor:
        codes = check_codes(codes)
        if len(codes) < self.components:
            raise InputError(
                f"a mixture of {self.components} components needs at least as many codes; given {len(codes)}: use fewer"
                " components, or more codes"
            )
        return codes

    def _check_responsibilities(self, share: Tensor, x: Tensor) -> Tensor:
        if share.shape != (len(x), self.components):
            raise InputError(
                f"responsibilities must be of shape {(len(x), self.components)}, (codes, components); given"
                f" {tuple(share.shape)}"
            )
        share = share.to(x)
        if not (share >= 0).all() or not torch.allclose(share.sum(1), share.new_ones(())):
            raise InputError("responsibilities must not be negative, and each row must sum to 1")
        return share

    def _maximise(self, x: Tensor, share: Tensor) -> tuple[Tensor, Gaussians]:
        # A component without codes keeps a positive weight, so that its log is finite.
        counts = share.sum(0) + 10 * torch.finfo(torch.float64).eps
        return counts / counts.sum(), Gaussians.estimate(x, share, counts, self.reg_covar)

    @property
    def fitted(self) -> Fitted:
        """The components and the history of the fit."""
        if self._fitted is None:
            raise InputError("this mixture was not fitted: call fit(codes) first")
        return self._fitted

    @property
    def weights(self) -> Tensor:
        """(components,)."""
        return self.fitted.weights

    @property
    def means(self) -> Tensor:
        """(components, d)."""
        return self.fitted.gaussians.means

    @property
    def covariances(self) -> Tensor:
        """(components, d, d)."""
        return self.fitted.gaussians.covariances

    @property
    def iterations(self) -> int:
        """The number of iterations."""
        return len(self.fitted.log_likelihoods)

    @property
    def converged(self) -> bool:
        """Whether the fit converged within `max_iterations`."""
        return self.fitted.converged

    def score_samples(self, codes: Tensor) -> Tensor:
        """Return the log-likelihood of each code, (n,)."""
        return self._log_joint_of(codes).logsumexp(1)

    def score(self, codes: Tensor) -> float:
        """Return the mean log-likelihood per code."""
        return float(self.score_samples(codes).mean())

    def predict(self, codes: Tensor) -> Tensor:
        """Return the most likely component of each code, (n,)."""
        return self._log_joint_of(codes).argmax(1)

    @torch.no_grad()
    def _log_joint_of(self, codes: Tensor) -> Tensor:
        fitted = self.fitted
        x = check_codes(codes, width=fitted.gaussians.means.shape[1]).to(fitted.weights)
        return _log_joint(x, fitted.weights, fitted.gaussians)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n new codes (n, d), in random order."""
        n, fitted = check_count("n", n), self.fitted
        where = fitted.weights.device
        # Drawn on the generator's device, so that a seed gives the same codes on every device.
        device = generator.device if generator else where
        edges = fitted.weights.cpu().cumsum(0).to(device)
        draw = torch.rand(n, generator=generator, device=device, dtype=torch.float64)
        chosen = torch.searchsorted(edges, draw * edges[-1], right=True).clamp(max=self.components - 1)
        noise = torch.randn(n, self.means.shape[1], generator=generator, device=device, dtype=torch.float64)
        return fitted.gaussians.transform(chosen.to(where), noise.to(where))

    @torch.no_grad()
    def estimate(self, codes: Tensor) -> float:
        """Return an upper estimate of the seconds that `fit` takes without k-means, from a small timed part."""
        x = self._check(codes).double()
        few = min(self.components, 8)
        rows = x[: min(len(x), 2000)]
        share = torch.full((len(rows), few), 1 / few, dtype=x.dtype, device=x.device)

        def iterate() -> None:
            trial = Gaussians.estimate(rows, share, share.sum(0), self.reg_covar + 1e-3)
            trial.log_density(rows).sum().item()

        iterate()  # the first call also initialises libraries
        began = time.perf_counter()
        iterate()
        part = (few / self.components) * (len(rows) / len(x))
        return (time.perf_counter() - began) / part * self.max_iterations


class Gaussians:
    """k Gaussians of d dimensions, with means (k, d) and covariances (k, d, d)."""

    def __init__(self, means: Tensor, covariances: Tensor):
        self.means, self.covariances = means, covariances
        self.roots, failed = torch.linalg.cholesky_ex(covariances)
        if failed.any():
            which = failed.nonzero().flatten().tolist()
            raise InputError(
                f"the covariance of {len(which)} components, the first is {which[0]}, is singular to rounding: raise"
                " reg_covar, or rescale the codes to a scale near 1"
            )
        self.log_volume = self.roots.diagonal(dim1=1, dim2=2).log().sum(1)

    @classmethod
    def estimate(cls, x: Tensor, share: Tensor, counts: Tensor, reg_covar: float) -> Gaussians:
        """Fit to points (n, d) with responsibilities `share` (n, k); `counts` (k,) are their sums."""
        means = (share.T @ x) / counts[:, None]
        covariances = x.new_empty(len(counts), x.shape[1], x.shape[1])
        # The more components at once, the more points that only some of them use.
        size = min(_components_at_once(x), 64)
        for first, used in zip(range(0, len(counts), size), _used_points(share, size), strict=True):
            part = slice(first, first + size)
            scatter = _scatter(x[used], share[used, part], means[part])
            covariances[part] = scatter / counts[part, None, None]
        covariances.diagonal(dim1=1, dim2=2).add_(reg_covar)
        return cls(means, covariances)

    def log_density(self, x: Tensor) -> Tensor:
        """Return the log densities (n, k), by products with inverse Cholesky factors."""
        n, d = x.shape
        out = x.new_empty(n, len(self.means))
        eye = torch.eye(d, dtype=self.roots.dtype, device=x.device)
        size = min(len(self.means), max(64, _components_at_once(x)))
        rows = max(1, _chunk_numel(x) // (size * d))
        for first in range(0, len(self.means), size):
            part = slice(first, first + size)
            inverse = torch.linalg.solve_triangular(self.roots[part], eye, upper=False)
            centre = (inverse @ self.means[part, :, None]).flatten()
            inverse = inverse.flatten(0, 1).T
            constant = -0.5 * d * LOG_2_PI - self.log_volume[part]
            for start in range(0, n, rows):
                points = slice(start, start + rows)
                scaled = torch.addmm(centre, x[points], inverse, beta=-1)
                squares = scaled.square_().view(scaled.shape[0], -1, d).sum(2)
                out[points, part] = squares.mul_(-0.5).add_(constant)
        return out

    def transform(self, chosen: Tensor, noise: Tensor) -> Tensor:
        """Turn standard normal noise (n, d) into samples of the chosen Gaussians (n,)."""
        rows = max(1, _chunk_numel(noise) // noise.shape[1] ** 2)
        parts = [
            self.means[which] + (self.roots[which] @ part[:, :, None]).squeeze(2)
            for which, part in zip(chosen.split(rows), noise.split(rows), strict=True)
        ]
        return torch.cat(parts)


def _log_joint(x: Tensor, weights: Tensor, gaussians: Gaussians) -> Tensor:
    """Return log weight + log density, (n, components)."""
    return gaussians.log_density(x).add_(weights.log())


def _scatter(x: Tensor, share: Tensor, means: Tensor) -> Tensor:
    """Return the sums of share (x - mean)(x - mean)^T, (k, d, d)."""
    centred = x - means[:, None]
    centred *= share.T.sqrt()[:, :, None]
    return centred.mT @ centred


def _used_points(share: Tensor, size: int) -> list[Tensor]:
    """Return, for each chunk of `size` components, the points with a share in any of them.

    Shares far from a component are exactly 0, since exp underflows: leaving them out changes nothing.
    """
    chunks = torch.stack([part.any(1) for part in share.split(size, 1)])
    # All at once: chunk by chunk would synchronise with the GPU for each.
    points = chunks.nonzero()[:, 1]
    return list(points.split(chunks.sum(1).tolist()))


def _components_at_once(x: Tensor) -> int:
    """Return as many components as fit into the memory of a GPU, and 1 on the CPU."""
    return max(1, min(_chunk_numel(x) // x.numel(), 1024)) if x.is_cuda else 1


def _chunk_numel(x: Tensor) -> int:
    """Return the numbers per chunk: a part of the free memory of a GPU, or what stays in the cache of a CPU."""
    if x.is_cuda:
        free = torch.cuda.mem_get_info(x.device)[0]
        return max(1, min(free // 4, 2 << 30) // x.element_size())
    return 1 << 22


class KernelDensity:
    """A Gaussian of one width around each code.

    >>> import torch, ncode_lab.metrics
    >>> density = ncode_lab.metrics.KernelDensity(torch.zeros(10, 2), width=0.5)
    >>> density.sample(1000, torch.Generator().manual_seed(0)).std().round(decimals=1)
    tensor(0.5000)
    """

    def __init__(self, codes: Tensor, width: float):
        self.codes = check_codes(codes)
        self.width = check_number("width", width, low=0.0, strict=True)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n new codes (n, d)."""
        n, device = check_count("n", n), generator.device if generator else self.codes.device
        chosen = torch.randint(len(self.codes), (n,), generator=generator, device=device)
        noise = torch.randn(n, self.codes.shape[1], generator=generator, device=device, dtype=self.codes.dtype)
        return self.codes[chosen.to(self.codes.device)] + self.width * noise.to(self.codes.device)
