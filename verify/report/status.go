package report

// Status is what became of a check that was not judged by its numbers, where more depends on that than its Reason.
type Status string

// The statuses. Those of a failed check are NotInPack and NoToken, the others are of skipped ones.
const (
	NotInPack       Status = "not-in-pack"      // the pack lacks the stage in this layer, or of this expert, alone
	NoToken         Status = "no-token"         // the pack has a stage of an expert that the model gives no token
	NotLookedAt     Status = "not-looked-at"    // the run stopped before
	PredictionLayer Status = "prediction-layer" // of multi-token prediction, that was not run
	NoProbes        Status = "no-probes"        // of a probe, in chained mode
	OutsideMLPs     Status = "outside-mlps"     // of a family of which MLPs alone are computed
	LocalOnly       Status = "local-only"       // the gradient of a stage, where such are not compared
	Undecided       Status = "undecided"        // a gradient beyond its fixed limit, but not far
	UndecidedStage  Status = "undecided-stage"  // a stage in chained mode, likewise
	UnknownRounding Status = "unknown-rounding" // a stage beyond its limits, of an operation whose roundings are not known
	Noisy           Status = "noisy"            // a gradient whose noise says that it proves nothing
)

// Words is the Reason of a check with this status.
func (s Status) Words() string {
	return map[Status]string{
		NotInPack:       "the pack has no such tensor for this ",
		NoToken:         "the model gives this expert no token",
		NotLookedAt:     "not looked at: the run stopped at the first failing stage",
		PredictionLayer: "the checkpoint lacks this prediction layer, or one before it",
		NoProbes:        "chained mode runs no probes: no layer's output depends on them",
		OutsideMLPs:     "not compared: of this family MLPs alone are computed",
		LocalOnly:       "gradients of stages are compared in local mode, if the pack has those of all layers' outputs",
		Undecided:       "beyond the fixed limit of gradients, by no more than rounding may do in a trained model",
		UndecidedStage:  "beyond the fixed limit of chained mode, by no more than rounding may do",
		UnknownRounding: "off by more than known roundings explain, but by no more than unknown ones may",
		Noisy:           "another order of sums changes it by so much in the reference that it proves nothing",
	}[s]
}
