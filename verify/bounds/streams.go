package bounds

import (
	"dsmoe/model"
	"dsmoe/model/tensor"
)

// unknown is the panic value of an operation without a variance.
const unknown = "bounds: the operation has no variance yet"

// Cast implements model.Arithmetic.
func (a *Analysis) Cast(*Value, tensor.DType) *Value { panic(unknown) }

// Clamp implements model.Arithmetic.
func (a *Analysis) Clamp(_ *Value, _, _ float32) *Value { panic(unknown) }

// UnitNorm implements model.Arithmetic.
func (a *Analysis) UnitNorm(*Value, float64) *Value { panic(unknown) }

// SinkSoftmax implements model.Arithmetic.
func (a *Analysis) SinkSoftmax(*Value, *model.Weight) *Value { panic(unknown) }

// Pool implements model.Arithmetic.
func (a *Analysis) Pool(_, _ *Value, _ *model.Weight, _ *model.Pooling) *Value { panic(unknown) }

// StreamGate implements model.Arithmetic.
func (a *Analysis) StreamGate(_ *Value, _ *model.Affine, _, _ float32) *Value { panic(unknown) }

// Sinkhorn implements model.Arithmetic.
func (a *Analysis) Sinkhorn(*Value, *model.Affine, int, float32) *Value { panic(unknown) }

// Collapse implements model.Arithmetic.
func (a *Analysis) Collapse(_, _ *Value) *Value { panic(unknown) }

// Expand implements model.Arithmetic.
func (a *Analysis) Expand(_, _, _, _ *Value) *Value { panic(unknown) }

// MaskKeys implements model.Arithmetic.
func (a *Analysis) MaskKeys(*Value, *model.Mask) *Value { panic(unknown) }

// SqrtSoftplus implements model.Arithmetic.
func (a *Analysis) SqrtSoftplus(*Value) *Value { panic(unknown) }

// TableExperts implements model.Arithmetic.
func (a *Analysis) TableExperts(*Value, *model.Weight, []int) []int { panic(unknown) }
