package faults

import (
	"errors"
	"testing"
)

func TestCheckAttachHere(t *testing.T) {
	err := CheckAttach()
	var u *Unavailable
	if err != nil && (!errors.As(err, &u) || u.WhatToDo == "") {
		t.Errorf("%v says not what to do", err)
	}
	t.Log(err)
}
