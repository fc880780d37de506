package abi

import "unsafe"

// Parts of the number of an ioctl (asm-generic/ioctl.h, which holds for all architectures that Go and the module
// share).
const (
	iocWrite = 1 << 30
	iocRead  = 2 << 30
	iocMagic = 0xD9 << 8
)

// Numbers of the module's ioctls.
const (
	IocInfo        = iocRead | unsafe.Sizeof(Info{})<<16 | iocMagic
	IocRegister    = iocRead | iocWrite | unsafe.Sizeof(Register{})<<16 | iocMagic | ReqRegister
	IocDeregister  = iocMagic | ReqDeregister
	IocTranslate   = iocRead | iocWrite | unsafe.Sizeof(Translate{})<<16 | iocMagic | ReqTranslate
	IocUntranslate = iocWrite | unsafe.Sizeof(Untranslate{})<<16 | iocMagic | ReqUntranslate
	IocJoin        = iocWrite | unsafe.Sizeof(Group{})<<16 | iocMagic | ReqJoin
	IocLeave       = iocWrite | unsafe.Sizeof(Group{})<<16 | iocMagic | ReqLeave
	IocDoorbell    = iocMagic | ReqDoorbell
	IocWait        = iocWrite | unsafe.Sizeof(Wait{})<<16 | iocMagic | ReqWait
	IocStatistics  = iocRead | unsafe.Sizeof(Statistics{})<<16 | iocMagic | ReqStatistics
)
