// The names of the models, and what is to be seen: a sentence or two for each task and model.

const NAMES = { node: "NODE", anode: "ANODE", "open-loop": "Open loop", "closed-loop": "Closed loop" };

const OWN_FIELD = "Each sample has weights of its own, θ = γ(x(0)), and so a field of its own (arrows).";
const DRIVEN = "All samples start with the same weights, and the state drives them on the way, dθ/dt = g(x).";

const CAPTIONS = {
  line: {
    node:
      "One field for all samples: trajectories cannot cross. The best that a NODE can do with x → −x is to send " +
      "every number to 0.",
    anode:
      "A second dimension, which starts at 0 and is not drawn, lets trajectories pass each other: only their " +
      "projections cross.",
    "open-loop": `${OWN_FIELD} Trajectories cross, and end at their targets.`,
    "closed-loop": `${DRIVEN} Their fields part, and trajectories cross.`,
  },
  mirror: {
    node:
      "A flow of the plane cannot turn it over, so a NODE cannot exchange left and right: it squeezes points past " +
      "each other, or leaves them in the middle.",
    anode: "Through a third dimension, which is not drawn, the plane can be turned over like a page.",
    "open-loop": `${OWN_FIELD} Left and right pass through each other.`,
    "closed-loop": `${DRIVEN} Left and right pass through each other.`,
  },
  annuli: {
    node:
      "A NODE deforms the plane without tearing it: the annulus stays closed around the disc, so the boundary has " +
      "to cut through it, between the points.",
    anode: "The disc leaves the plane through a third dimension, which is not drawn, and a plane separates the two.",
    "open-loop": `${OWN_FIELD} The disc leaves the annulus, which stays closed.`,
    "closed-loop": `${DRIVEN} Drag the sample from the disc into the annulus, and watch its weights.`,
  },
  spirals: {
    node: "Two spirals can be unrolled without tearing the plane, so one field for all samples is enough.",
    anode: "With a third dimension, which is not drawn, the arms can also be lifted apart.",
    "open-loop": `${OWN_FIELD} The arms need not be unrolled, only told apart.`,
    "closed-loop": `${DRIVEN} The arms need not be unrolled, only told apart.`,
  },
  own: {
    node: "One field for all samples: a class that surrounds the other cannot be separated from it.",
    anode: "One field for all samples, in three dimensions: classes can pass above each other.",
    "open-loop": OWN_FIELD,
    "closed-loop": DRIVEN,
  },
};
