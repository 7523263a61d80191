"""Mixtures of Gaussians, fitted by expectation and maximisation on the device of the codes."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_choice, check_number

from .checks import check_codes, check_count
from .gaussians import Diagonal, Full, Gaussians
from .kmeans import Progress, k_means

FORMS: dict[str, type[Gaussians]] = {"full": Full, "diagonal": Diagonal}


@dataclass(frozen=True)
class Fitted:
    """Components and how the fit went: the mean log-likelihood of a code before each step, and whether it settled."""

    weights: Tensor
    gaussians: Gaussians
    bounds: list[float]
    converged: bool


class GaussianMixture:
    """A mixture of Gaussians with full or diagonal covariances.

    It starts from k-means and stops when the mean log-likelihood of a code grows by less than `tol`, or after
    `max_iterations`. `reg_covar` is added to every variance: it is what keeps a component with fewer codes than
    dimensions apart from a singular one, and it is the width of such a component in the directions it has not seen.

    Everything is in float64; with `dtype=torch.float32` the products over all codes and components are not, which is
    faster where float64 is slow; keep TF32 off then. Parameters stay in float64, so that small components do not become
    singular.

    >>> import torch, ncode_lab.metrics
    >>> codes = torch.cat([torch.randn(200, 2), torch.randn(200, 2) + 8])
    >>> mixture = ncode_lab.metrics.GaussianMixture(2).fit(codes)
    >>> mixture.means.mean(1).sort().values.round().abs()
    tensor([0., 8.], dtype=torch.float64)
    >>> mixture.sample(5, torch.Generator().manual_seed(0)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        components: int,
        covariance: str = "full",
        *,
        tol: float = 1e-3,
        max_iterations: int = 100,
        reg_covar: float = 1e-6,
        dtype: torch.dtype = torch.float64,
    ):
        self.components = check_count("components", components)
        self.covariance = check_choice("covariance", covariance, FORMS)
        self.tol = check_number("tol", tol, low=0.0)
        self.max_iterations = check_count("max_iterations", max_iterations)
        self.reg_covar = check_number("reg_covar", reg_covar, low=0.0)
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"dtype must be torch.float64 or torch.float32; given {dtype}")
        self.dtype = dtype
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
        """Fit to codes (n, d); returns itself.

        `responsibilities` (n, components) replaces k-means as the start; `generator` fixes the k-means;
        `progress(stage, done, of)` is told of each iteration.
        """
        x = self._check(codes).double()
        if responsibilities is None:
            labels = k_means(x, self.components, generator=generator, progress=progress).labels
            share = torch.nn.functional.one_hot(labels, self.components).double()
        else:
            share = self._check_share(responsibilities, x)
        weights, gaussians = self._maximise(x, share)
        del share
        rows, bounds, converged = x.to(self.dtype), [], False
        for iteration in range(1, self.max_iterations + 1):
            joint = self._joint(rows, weights, gaussians)
            total = joint.logsumexp(1, keepdim=True)
            bounds.append(float(total.double().mean()))
            weights, gaussians = self._maximise(x, joint.sub_(total).exp_())
            if progress is not None:
                progress("mixture", iteration, self.max_iterations)
            converged = len(bounds) > 1 and abs(bounds[-1] - bounds[-2]) < self.tol
            if converged:
                break
        self._fitted = Fitted(weights, gaussians, bounds, converged)
        return self

    def _check(self, codes: Any) -> Tensor:
        codes = check_codes(codes)
        if len(codes) < self.components:
            raise InputError(
                f"a mixture of {self.components} components needs at least as many codes; given {len(codes)}: use fewer"
                " components, or more codes"
            )
        return codes

    def _check_share(self, share: Tensor, x: Tensor) -> Tensor:
        if share.shape != (len(x), self.components):
            raise InputError(
                f"responsibilities must be of shape {(len(x), self.components)}, (codes, components); given"
                f" {tuple(share.shape)}"
            )
        share = share.to(x)
        if not (share >= 0).all() or not torch.allclose(share.sum(1), share.new_ones(())):
            raise InputError("responsibilities must not be negative, and the row of each code must sum to 1")
        return share

    def _joint(self, rows: Tensor, weights: Tensor, gaussians: Gaussians) -> Tensor:
        """log weight + log density, (n, components)."""
        return gaussians.log_density(rows).add_(weights.log().to(rows.dtype))

    def _maximise(self, x: Tensor, share: Tensor) -> tuple[Tensor, Gaussians]:
        # A component that lost all its codes keeps a weight above 0, so that its log is finite.
        counts = share.sum(0, dtype=torch.float64) + 10 * torch.finfo(torch.float64).eps
        gaussians = FORMS[self.covariance].estimate(x, share, counts, self.reg_covar)
        return counts / counts.sum(), gaussians

    @property
    def fitted(self) -> Fitted:
        """The components and how the fit went."""
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
        """(components, d, d), or (components, d) where they are diagonal."""
        return self.fitted.gaussians.covariances

    @property
    def iterations(self) -> int:
        """How many steps the fit took."""
        return len(self.fitted.bounds)

    @property
    def converged(self) -> bool:
        """Whether the fit settled within `max_iterations`."""
        return self.fitted.converged

    @torch.no_grad()
    def score_samples(self, codes: Tensor) -> Tensor:
        """The log-likelihood of each code, (n,)."""
        return self._known(codes).logsumexp(1)

    def score(self, codes: Tensor) -> float:
        """The mean log-likelihood of a code."""
        return float(self.score_samples(codes).double().mean())

    def predict(self, codes: Tensor) -> Tensor:
        """The likeliest component of each code, (n,)."""
        return self._known(codes).argmax(1)

    @torch.no_grad()
    def predict_proba(self, codes: Tensor) -> Tensor:
        """The responsibilities, (n, components)."""
        return self._known(codes).softmax(1)

    @torch.no_grad()
    def _known(self, codes: Tensor) -> Tensor:
        fitted = self.fitted
        rows = check_codes(codes, width=fitted.gaussians.means.shape[1]).to(fitted.weights.device, self.dtype)
        return self._joint(rows, fitted.weights, fitted.gaussians)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n new codes (n, d), in random order."""
        fitted = self.fitted
        where = fitted.weights.device
        device = generator.device if generator else where
        # Drawn where the generator lives, so that a seed gives the same codes on every device.
        edges = fitted.weights.cpu().cumsum(0).to(device)
        draw = torch.rand(check_count("n", n), generator=generator, device=device, dtype=torch.float64)
        chosen = torch.searchsorted(edges, draw * edges[-1], right=True).clamp(max=self.components - 1)
        noise = torch.randn(n, self.means.shape[1], generator=generator, device=device, dtype=torch.float64)
        return fitted.gaussians.move(chosen.to(where), noise.to(where))

    @torch.no_grad()
    def estimate(self, codes: Tensor) -> float:
        """Seconds that `fit` takes at most, of a small part of one iteration that is timed; k-means not counted."""
        x = self._check(codes).double()
        few = min(self.components, 8)
        rows = x[: min(len(x), 2000)]
        share = torch.full((len(rows), few), 1 / few, dtype=x.dtype, device=x.device)
        counts = share.sum(0)

        def once() -> None:
            trial = FORMS[self.covariance].estimate(rows, share, counts, self.reg_covar + 1e-3)
            trial.log_density(rows.to(self.dtype)).sum().item()

        once()  # the first call also pays for libraries that start
        began = time.perf_counter()
        once()
        part = (few / self.components) * (len(rows) / len(x))
        return (time.perf_counter() - began) / part * self.max_iterations


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
        """n new codes (n, d)."""
        device = generator.device if generator else self.codes.device
        chosen = torch.randint(len(self.codes), (check_count("n", n),), generator=generator, device=device)
        noise = torch.randn(n, self.codes.shape[1], generator=generator, device=device, dtype=self.codes.dtype)
        return self.codes[chosen.to(self.codes.device)] + self.width * noise.to(self.codes.device)

    @torch.no_grad()
    def score_samples(self, codes: Tensor) -> Tensor:
        """The log-likelihood of each code, (n,)."""
        x, centres = check_codes(codes, width=self.codes.shape[1]).to(self.codes.device).double(), self.codes.double()
        around = self.codes.shape[1] * math.log(self.width * math.sqrt(2 * math.pi)) + math.log(len(self.codes))
        parts = [(torch.cdist(part, centres).square() / (-2 * self.width**2)).logsumexp(1) for part in x.split(1000)]
        return torch.cat(parts) - around

    def score(self, codes: Tensor) -> float:
        """The mean log-likelihood of a code."""
        return float(self.score_samples(codes).mean())
